// SPDX-License-Identifier: GPL-2.0
/* The controller of a file, from the attach until nvme leaves it or the file is closed. */
#include <linux/file.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include <nvme.h>

#include "disk.h"

static LIST_HEAD(nq_disks);
static DEFINE_MUTEX(nq_disks_lock);

/* -EAGAIN while nvme resets it. If the function has a later controller, this one is dead. */
int nq_state_error(struct nvme_ctrl *ctrl)
{
	switch (nvme_ctrl_state(ctrl)) {
	case NVME_CTRL_LIVE:
		return 0;
	case NVME_CTRL_DELETING:
	case NVME_CTRL_DELETING_NOIO:
	case NVME_CTRL_DEAD:
		return -ENODEV;
	default:
		return -EAGAIN;
	}
}

/* With the device's lock, so that nvme does not leave it concurrently. */
static int take(struct nq_disk *disk, struct file *file, struct nvme_ctrl *ctrl)
{
	struct pci_dev *pdev = to_pci_dev(ctrl->dev);
	u32 result = 0;
	int error;

	if (!pdev->dev.driver)
		return -ENODEV;
	error = nq_state_error(ctrl);
	if (error)
		return error;
	error = pcim_p2pdma_init(pdev);
	if (!error)
		error = nvme_get_features(ctrl, NVME_FEAT_NUM_QUEUES, 0, NULL, 0, &result);
	if (error)
		return error < 0 ? error : -EIO;
	disk->pairs = nq_pairs_of(ctrl);
	if (!disk->pairs)
		return -ENOMEM;
	disk->granted = min(result & 0xffff, result >> 16) + 1;
	disk->file = get_file(file);
	disk->ctrl = ctrl;
	disk->pdev = pci_dev_get(pdev);
	mutex_lock(&nq_disks_lock);
	list_add_tail(&disk->node, &nq_disks);
	mutex_unlock(&nq_disks_lock);
	return 0;
}

static int take_locked(struct nq_disk *disk, struct file *file, struct nvme_ctrl *ctrl)
{
	int error;

	device_lock(ctrl->dev);
	mutex_lock(&disk->lock);
	error = disk->file ? -EBUSY : take(disk, file, ctrl);
	mutex_unlock(&disk->lock);
	device_unlock(ctrl->dev);
	return error;
}

static int attach_to(struct nq_disk *disk, struct file *file)
{
	struct nvme_ctrl *ctrl = nvme_ctrl_from_file(file);

	if (!ctrl)
		return -EINVAL;
	/* The device of a fabrics controller is of another kind. */
	if (!dev_is_pci(ctrl->dev))
		return -EOPNOTSUPP;
	return take_locked(disk, file, ctrl);
}

int nq_attach(struct nq_disk *disk, struct peerbar_nvme_attach *attach)
{
	struct file *file = fget(attach->fd);
	int error;

	if (!file)
		return -EBADF;
	error = attach_to(disk, file);
	fput(file);
	if (error)
		return error;
	attach->queues = disk->granted;
	attach->linux_queues = nq_linux_queues(disk->ctrl);
	attach->entries = NVME_CAP_MQES(disk->ctrl->cap) + 1;
	return 0;
}

/* With nq_disk.lock. Writers of the doorbells are stopped first, and memory is released last. */
static void end(struct nq_disk *disk)
{
	nq_doorbells_revoke(disk);
	nq_pairs_end(disk, PEERBAR_NVME_REMOVED);
	nq_memories_revoke(disk);
}

static void free_disk(struct kref *refs)
{
	struct nq_disk *disk = container_of(refs, struct nq_disk, refs);

	if (disk->file) {
		nq_pairs_free(disk);
		nq_memories_free(disk);
		nq_doorbells_free(disk);
		nq_pairs_put(disk->pairs);
		pci_dev_put(disk->pdev);
		fput(disk->file);
	}
	kfree(disk);
}

struct nq_disk *nq_disk_new(void)
{
	struct nq_disk *disk = kzalloc_obj(*disk);

	if (!disk)
		return NULL;
	kref_init(&disk->refs);
	mutex_init(&disk->lock);
	xa_init_flags(&disk->memories, XA_FLAGS_ALLOC);
	return disk;
}

static void end_once(struct nq_disk *disk)
{
	mutex_lock(&disk->lock);
	if (!disk->removed)
		end(disk);
	WRITE_ONCE(disk->removed, true);
	mutex_unlock(&disk->lock);
}

/* The file is closed. */
void nq_detach(struct nq_disk *disk)
{
	if (disk->file) {
		end_once(disk);
		mutex_lock(&nq_disks_lock);
		list_del(&disk->node);
		mutex_unlock(&nq_disks_lock);
	}
	kref_put(&disk->refs, free_disk);
}

/* Returns a file's disk that still has this controller, with a reference. */
static struct nq_disk *disk_of(const struct device *dev)
{
	struct nq_disk *found = NULL;
	struct nq_disk *disk;

	mutex_lock(&nq_disks_lock);
	list_for_each_entry(disk, &nq_disks, node) {
		if (&disk->pdev->dev == dev && !READ_ONCE(disk->removed)) {
			kref_get(&disk->refs);
			found = disk;
			break;
		}
	}
	mutex_unlock(&nq_disks_lock);
	return found;
}

/* nvme is about to leave the device: its admin queue still works. */
static int on_bus_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct nq_disk *disk;

	if (event != BUS_NOTIFY_UNBIND_DRIVER)
		return NOTIFY_DONE;
	while ((disk = disk_of(data))) {
		end_once(disk);
		kref_put(&disk->refs, free_disk);
	}
	return NOTIFY_OK;
}

static struct notifier_block bus_events = {
	.notifier_call = on_bus_event,
};

int nq_attach_init(void)
{
	return bus_register_notifier(&pci_bus_type, &bus_events);
}

void nq_attach_exit(void)
{
	bus_unregister_notifier(&pci_bus_type, &bus_events);
}
