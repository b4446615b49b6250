// SPDX-License-Identifier: GPL-2.0
/*
 * An inode for each GPU, whose address_space contains all mappings of the GPU, regardless of the
 * device node. It is in a separate file system: an inode of a device node would keep the node's
 * file system from being unmounted.
 */
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>

#include "gpu.h"

#define MAGIC 0x50424750

static int init_fs_context(struct fs_context *context)
{
	return init_pseudo(context, MAGIC) ? 0 : -ENOMEM;
}

/*
 * Without an owner, or a present GPU would keep the module from being unloaded. It ends with the
 * last GPU.
 */
static struct file_system_type file_system = {
	.name = "peerbar_gpu",
	.init_fs_context = init_fs_context,
	.kill_sb = kill_anon_super,
};

static struct vfsmount *mount;
static int mount_users;

struct inode *pb_inode_new(void)
{
	struct inode *inode;
	int error;

	error = simple_pin_fs(&file_system, &mount, &mount_users);
	if (error)
		return ERR_PTR(error);
	inode = alloc_anon_inode(mount->mnt_sb);
	if (IS_ERR(inode))
		simple_release_fs(&mount, &mount_users);
	return inode;
}

void pb_inode_free(struct inode *inode)
{
	iput(inode);
	simple_release_fs(&mount, &mount_users);
}
