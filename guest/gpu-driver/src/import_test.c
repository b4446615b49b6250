// SPDX-License-Identifier: GPL-2.0
/* An importer of dma-bufs for tests: see include/peerbar_gpu_import_test.h. */
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include <peerbar_gpu_import_test.h>

#include "older_kernels.h"

/* ---- the importer ---- */

struct import {
	struct dma_buf *dmabuf;
	struct device *dev;	/* a reference */
	struct dma_buf_attachment *attachment;
	struct sg_table *sgt;	/* NULL while not mapped; from here on under the dma_resv */
	u32 pins;
	u32 notified;
};

/* With the dma_resv held. */
static int unmap(struct import *import)
{
	if (!import->sgt)
		return -EINVAL;
	dma_buf_unmap_attachment(import->attachment, import->sgt, DMA_BIDIRECTIONAL);
	import->sgt = NULL;
	return 0;
}

/* With the dma_resv held. */
static int unpin(struct import *import)
{
	if (!import->pins)
		return -EINVAL;
	import->pins--;
	dma_buf_unpin(import->attachment);
	return 0;
}

/* With the dma_resv held. There is no hardware to stop. */
static void let_go(struct import *import)
{
	unmap(import);
	while (import->pins)
		unpin(import);
}

static void taken_away(struct dma_buf_attachment *attachment)
{
	struct import *import = attachment->importer_priv;

	import->notified++;
	let_go(import);
}

static const struct dma_buf_attach_ops notified_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = taken_away,
};

#ifndef PB_HAS_INVALIDATE_MAPPINGS
/* These kernels want a callback. It must not be called. */
static void taken_away_in_vain(struct dma_buf_attachment *attachment)
{
	struct import *import = attachment->importer_priv;

	import->notified++;
}
#endif

static const struct dma_buf_attach_ops pinning_ops = {
	.allow_peer2peer = true,
#ifndef PB_HAS_INVALIDATE_MAPPINGS
	.invalidate_mappings = taken_away_in_vain,
#endif
};

static const struct dma_buf_attach_ops host_only_ops = {
	.invalidate_mappings = taken_away,
};

/* By kind. */
static const struct dma_buf_attach_ops *const kinds[] = {
	[PEERBAR_IMPORT_TEST_NOTIFIED] = &notified_ops,
	[PEERBAR_IMPORT_TEST_PINNING] = &pinning_ops,
	[PEERBAR_IMPORT_TEST_STATIC] = NULL,
	[PEERBAR_IMPORT_TEST_HOST_ONLY] = &host_only_ops,
};

static void detach(struct import *import)
{
	struct dma_buf *dmabuf = import->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	let_go(import);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, import->attachment);
	dma_buf_put(dmabuf);
	put_device(import->dev);
	kfree(import);
}

/* ---- requests ---- */

static struct miscdevice test_device;

/* With a reference; NULL if there is none. */
static struct device *importing_device(const struct peerbar_import_test_attach *attach)
{
	struct pci_dev *pdev;

	if (attach->domain == PEERBAR_IMPORT_TEST_NO_PCI)
		return get_device(test_device.this_device);
	pdev = pci_get_domain_bus_and_slot(attach->domain, attach->bus, attach->devfn);
	return pdev ? &pdev->dev : NULL;
}

/* Takes over the references if the import is in the list, which result says. */
static int attach_to(struct xarray *imports, struct peerbar_import_test_attach *attach,
		     struct dma_buf *dmabuf, struct device *dev)
{
	struct import *import = kzalloc(sizeof(*import), GFP_KERNEL);
	int error;

	if (!import)
		return -ENOMEM;
	import->dmabuf = dmabuf;
	import->dev = dev;
	import->attachment = dma_buf_dynamic_attach(dmabuf, dev, kinds[attach->kind], import);
	if (IS_ERR(import->attachment)) {
		error = PTR_ERR(import->attachment);
		kfree(import);
		return error;
	}
	error = xa_alloc(imports, &attach->id, import, xa_limit_31b, GFP_KERNEL);
	if (error) {
		dma_buf_detach(dmabuf, import->attachment);
		kfree(import);
	}
	return error;
}

static int request_attach(struct xarray *imports, void *argument)
{
	struct peerbar_import_test_attach *attach = argument;
	struct dma_buf *dmabuf;
	struct device *dev;

	if (attach->kind >= ARRAY_SIZE(kinds))
		return -EINVAL;
	dev = importing_device(attach);
	if (!dev)
		return -ENXIO;
	dmabuf = dma_buf_get(attach->fd);
	if (IS_ERR(dmabuf)) {
		put_device(dev);
		return PTR_ERR(dmabuf);
	}
	attach->result = attach_to(imports, attach, dmabuf, dev);
	if (attach->result) {
		dma_buf_put(dmabuf);
		put_device(dev);
	}
	return 0;
}

static int request_detach(struct xarray *imports, void *argument)
{
	struct peerbar_import_test_id *id = argument;
	struct import *import = xa_erase(imports, id->id);

	if (!import)
		return -ENOENT;
	detach(import);
	id->result = 0;
	return 0;
}

static void request_pin(struct import *import, void *argument)
{
	struct peerbar_import_test_id *id = argument;

	/* Only dynamic importers may. */
	id->result = import->attachment->importer_ops ? dma_buf_pin(import->attachment) : -EINVAL;
	if (!id->result)
		import->pins++;
}

static void request_unpin(struct import *import, void *argument)
{
	struct peerbar_import_test_id *id = argument;

	id->result = unpin(import);
}

static void request_map(struct import *import, void *argument)
{
	struct peerbar_import_test_map *map = argument;
	struct sg_table *sgt;

	map->result = -EEXIST;
	if (import->sgt)
		return;
	sgt = dma_buf_map_attachment(import->attachment, DMA_BIDIRECTIONAL);
	map->result = PTR_ERR_OR_ZERO(sgt);
	if (map->result)
		return;
	import->sgt = sgt;
	map->dma_address = sg_dma_address(sgt->sgl);
	map->length = sg_dma_len(sgt->sgl);
}

static void request_unmap(struct import *import, void *argument)
{
	struct peerbar_import_test_id *id = argument;

	id->result = unmap(import);
}

static void request_state(struct import *import, void *argument)
{
	struct peerbar_import_test_state *state = argument;

	state->notified = import->notified;
	state->pins = import->pins;
	state->mapped = !!import->sgt;
}

static int request_reopen(struct import *import, struct peerbar_import_test_reopen *reopen)
{
	get_dma_buf(import->dmabuf);
	reopen->fd = dma_buf_fd(import->dmabuf, O_CLOEXEC);
	if (reopen->fd >= 0)
		return 0;
	dma_buf_put(import->dmabuf);
	return reopen->fd;
}

struct request {
	unsigned int command;
	void (*serve)(struct import *import, void *argument);
};

/* Requests about one import with the dma_resv held; each argument starts with its id. */
static const struct request requests[] = {
	{ PEERBAR_IMPORT_TEST_PIN, request_pin },
	{ PEERBAR_IMPORT_TEST_UNPIN, request_unpin },
	{ PEERBAR_IMPORT_TEST_MAP, request_map },
	{ PEERBAR_IMPORT_TEST_UNMAP, request_unmap },
	{ PEERBAR_IMPORT_TEST_STATE, request_state },
};

static int serve(struct xarray *imports, unsigned int command, void *argument)
{
	struct import *import;
	unsigned int i;

	if (command == PEERBAR_IMPORT_TEST_ATTACH)
		return request_attach(imports, argument);
	if (command == PEERBAR_IMPORT_TEST_DETACH)
		return request_detach(imports, argument);
	import = xa_load(imports, *(u32 *)argument);
	if (!import)
		return -ENOENT;
	if (command == PEERBAR_IMPORT_TEST_REOPEN)
		return request_reopen(import, argument);
	for (i = 0; i < ARRAY_SIZE(requests); i++) {
		if (requests[i].command == command) {
			dma_resv_lock(import->dmabuf->resv, NULL);
			requests[i].serve(import, argument);
			dma_resv_unlock(import->dmabuf->resv);
			return 0;
		}
	}
	return -ENOTTY;
}

/* ---- the file ---- */

struct opened {
	struct mutex lock;	/* one request after the other */
	struct xarray imports;
};

static long test_ioctl(struct file *filp, unsigned int command, unsigned long address)
{
	struct opened *opened = filp->private_data;
	union {
		struct peerbar_import_test_attach attach;
		struct peerbar_import_test_map map;
		struct peerbar_import_test_state state;
	} argument;
	void __user *user = (void __user *)address;
	size_t size = _IOC_SIZE(command);
	int error;

	if (_IOC_TYPE(command) != 'P' || size > sizeof(argument))
		return -ENOTTY;
	memset(&argument, 0, sizeof(argument));
	if (copy_from_user(&argument, user, size))
		return -EFAULT;
	mutex_lock(&opened->lock);
	error = serve(&opened->imports, command, &argument);
	mutex_unlock(&opened->lock);
	if (error)
		return error;
	if (_IOC_DIR(command) & _IOC_READ && copy_to_user(user, &argument, size))
		return -EFAULT;
	return 0;
}

static int test_open(struct inode *inode, struct file *filp)
{
	struct opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);

	if (!opened)
		return -ENOMEM;
	mutex_init(&opened->lock);
	xa_init_flags(&opened->imports, XA_FLAGS_ALLOC1);
	filp->private_data = opened;
	return 0;
}

static int test_release(struct inode *inode, struct file *filp)
{
	struct opened *opened = filp->private_data;
	struct import *import;
	unsigned long id;

	xa_for_each(&opened->imports, id, import)
		detach(import);
	xa_destroy(&opened->imports);
	kfree(opened);
	return 0;
}

static const struct file_operations test_operations = {
	.owner = THIS_MODULE,
	.open = test_open,
	.release = test_release,
	.unlocked_ioctl = test_ioctl,
};

static struct miscdevice test_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "peerbar-gpu-import-test",
	.fops = &test_operations,
	.mode = 0600,
};
module_misc_device(test_device);

MODULE_DESCRIPTION("peerbar GPU: an importer of dma-bufs, for tests");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
