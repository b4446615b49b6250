// SPDX-License-Identifier: GPL-2.0
/* An importer of dma-bufs for tests: see include/peerbar_gpu_import_test.h. */
#include <linux/dma-resv.h>
#include <linux/pci.h>

#include <peerbar_gpu_import_test.h>

#include "older_kernels.h"
#include "test_device.h"

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
/* These kernels require a callback. It must not be called. */
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

static void detach(void *object)
{
	struct import *import = object;
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

static struct test_device import_device;

/* With a reference; NULL if there is no such device. */
static struct device *importing_device(const struct peerbar_import_test_attach *attach)
{
	struct pci_dev *pdev;

	if (attach->domain == PEERBAR_IMPORT_TEST_NO_PCI)
		return get_device(import_device.misc.this_device);
	pdev = pci_get_domain_bus_and_slot(attach->domain, attach->bus, attach->devfn);
	return pdev ? &pdev->dev : NULL;
}

/* Takes over the references if the import is in the list, as reported in result. */
static int attach_to(struct test_objects *imports, struct peerbar_import_test_attach *attach,
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
	error = test_objects_add(imports, &attach->id, import);
	if (error) {
		dma_buf_detach(dmabuf, import->attachment);
		kfree(import);
	}
	return error;
}

static int request_attach(struct test_objects *imports, void *argument)
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

static int request_detach(struct test_objects *imports, void *argument)
{
	struct peerbar_import_test_id *id = argument;

	detach(xa_erase(&imports->by_id, id->id));
	id->result = 0;
	return 0;
}

static int request_pin(void *object, void *argument)
{
	struct import *import = object;
	struct peerbar_import_test_id *id = argument;

	/* Only dynamic importers may pin. */
	id->result = import->attachment->importer_ops ? dma_buf_pin(import->attachment) : -EINVAL;
	if (!id->result)
		import->pins++;
	return 0;
}

static int request_unpin(void *object, void *argument)
{
	struct import *import = object;
	struct peerbar_import_test_id *id = argument;

	id->result = unpin(import);
	return 0;
}

static int request_map(void *object, void *argument)
{
	struct import *import = object;
	struct peerbar_import_test_map *map = argument;
	struct scatterlist *sg;
	struct sg_table *sgt;
	unsigned int i;

	map->result = -EEXIST;
	if (import->sgt)
		return 0;
	sgt = dma_buf_map_attachment(import->attachment, DMA_BIDIRECTIONAL);
	map->result = PTR_ERR_OR_ZERO(sgt);
	if (map->result)
		return 0;
	import->sgt = sgt;
	map->dma_address = sg_dma_address(sgt->sgl);
	map->length = 0;
	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (sg_dma_address(sg) != map->dma_address + map->length)
			break;
		map->length += sg_dma_len(sg);
	}
	return 0;
}

static int request_unmap(void *object, void *argument)
{
	struct import *import = object;
	struct peerbar_import_test_id *id = argument;

	id->result = unmap(import);
	return 0;
}

static int request_state(void *object, void *argument)
{
	struct import *import = object;
	struct peerbar_import_test_state *state = argument;

	state->notified = import->notified;
	state->pins = import->pins;
	state->mapped = !!import->sgt;
	return 0;
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

/* With the dma_resv held. */
static const struct test_request requests[] = {
	{ PEERBAR_IMPORT_TEST_PIN, request_pin },
	{ PEERBAR_IMPORT_TEST_UNPIN, request_unpin },
	{ PEERBAR_IMPORT_TEST_MAP, request_map },
	{ PEERBAR_IMPORT_TEST_UNMAP, request_unmap },
	{ PEERBAR_IMPORT_TEST_STATE, request_state },
};

static int serve_locked(struct test_objects *imports, unsigned int command, void *argument)
{
	struct import *import;
	int error;

	if (command == PEERBAR_IMPORT_TEST_ATTACH)
		return request_attach(imports, argument);
	import = test_objects_find(imports, argument);
	if (!import)
		return -ENOENT;
	if (command == PEERBAR_IMPORT_TEST_DETACH)
		return request_detach(imports, argument);
	if (command == PEERBAR_IMPORT_TEST_REOPEN)
		return request_reopen(import, argument);
	dma_resv_lock(import->dmabuf->resv, NULL);
	error = test_serve(requests, ARRAY_SIZE(requests), command, import, argument);
	dma_resv_unlock(import->dmabuf->resv);
	return error;
}

/* One request after the other, so that none uses an import that another detaches. */
static int serve(struct test_objects *imports, unsigned int command, void *argument)
{
	int error;

	mutex_lock(&imports->lock);
	error = serve_locked(imports, command, argument);
	mutex_unlock(&imports->lock);
	return error;
}

static struct test_device import_device = {
	.misc.name = "peerbar-gpu-import-test",
	.serve = serve,
	.let_go = detach,
};
module_test_device(import_device);

MODULE_DESCRIPTION("peerbar GPU: an importer of dma-bufs, for tests");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
