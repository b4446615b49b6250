// SPDX-License-Identifier: GPL-2.0
/* The device file: see include/peerbar_nvme_queues.h. */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "disk.h"

union argument {
	struct peerbar_nvme_attach attach;
	struct peerbar_nvme_map map;
	struct peerbar_nvme_unmap unmap;
	struct peerbar_nvme_create create;
	struct peerbar_nvme_delete delete;
	struct peerbar_nvme_query query;
	struct peerbar_nvme_doorbells doorbells;
};

/* With nq_disk.lock. */
static int serve_attached(struct nq_disk *disk, unsigned int command, union argument *argument)
{
	switch (command) {
	case PEERBAR_NVME_DELETE:
		return nq_delete(disk, argument->delete.queue);
	case PEERBAR_NVME_QUERY:
		return nq_query(disk, &argument->query);
	case PEERBAR_NVME_UNMAP:
		return nq_memory_unmap(disk, argument->unmap.id);
	}
	if (disk->removed)
		return -ENODEV;
	switch (command) {
	case PEERBAR_NVME_MAP:
		return nq_memory_map(disk, &argument->map);
	case PEERBAR_NVME_CREATE:
		return nq_create(disk, &argument->create);
	case PEERBAR_NVME_DOORBELLS:
		argument->doorbells.fd = nq_doorbells_export(disk);
		return min(argument->doorbells.fd, 0);
	default:
		return -ENOTTY;
	}
}

static int serve(struct nq_disk *disk, unsigned int command, union argument *argument)
{
	int error;

	if (command == PEERBAR_NVME_ATTACH)
		return nq_attach(disk, &argument->attach);
	mutex_lock(&disk->lock);
	error = disk->file ? serve_attached(disk, command, argument) : -ENXIO;
	mutex_unlock(&disk->lock);
	return error;
}

static long nq_ioctl(struct file *file, unsigned int command, unsigned long address)
{
	void __user *user = (void __user *)address;
	size_t size = _IOC_SIZE(command);
	union argument argument = {};
	int error;

	if (size > sizeof(argument))
		return -ENOTTY;
	if ((_IOC_DIR(command) & _IOC_WRITE) && copy_from_user(&argument, user, size))
		return -EFAULT;
	error = serve(file->private_data, command, &argument);
	if (error)
		return error;
	if ((_IOC_DIR(command) & _IOC_READ) && copy_to_user(user, &argument, size))
		return -EFAULT;
	return 0;
}

static int nq_open(struct inode *inode, struct file *file)
{
	struct nq_disk *disk;

	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	disk = nq_disk_new();
	if (!disk)
		return -ENOMEM;
	file->private_data = disk;
	return 0;
}

static int nq_release(struct inode *inode, struct file *file)
{
	nq_detach(file->private_data);
	return 0;
}

static const struct file_operations nq_operations = {
	.owner = THIS_MODULE,
	.open = nq_open,
	.release = nq_release,
	.unlocked_ioctl = nq_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice nq_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "peerbar-nvme-queues",
	.fops = &nq_operations,
	.mode = 0600,
};

static int __init nq_init(void)
{
	int error = nq_attach_init();

	if (error)
		return error;
	error = misc_register(&nq_device);
	if (error)
		nq_attach_exit();
	return error;
}
module_init(nq_init);

static void __exit nq_exit(void)
{
	misc_deregister(&nq_device);
	nq_attach_exit();
}
module_exit(nq_exit);

MODULE_DESCRIPTION("Queues of NVMe controllers beside those of nvme, in the memory of peers");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
MODULE_IMPORT_NS("NVME_TARGET_PASSTHRU");
