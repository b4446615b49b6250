// SPDX-License-Identifier: GPL-2.0
/* dma-bufs that the controller reaches: one contains its queues, others the data of commands. */
#include <linux/dma-resv.h>
#include <linux/slab.h>

#include "disk.h"

/* Time limit for fences of an exporter, in jiffies. */
#define FENCE_TIMEOUT (5 * HZ)

/* With the dma_resv held. */
static void unmap(struct nq_memory *memory)
{
	if (!memory->sgt)
		return;
	dma_buf_unmap_attachment(memory->attachment, memory->sgt, DMA_BIDIRECTIONAL);
	memory->sgt = NULL;
}

/*
 * With the dma_resv held. Commands in progress may use this memory, regardless of their queue, and
 * this module does not know them. Deleting the queues ends them.
 */
static void taken_away(struct dma_buf_attachment *attachment)
{
	struct nq_memory *memory = attachment->importer_priv;

	if (!memory->sgt)
		return;
	nq_pairs_end(memory->disk, PEERBAR_NVME_REVOKED);
	unmap(memory);
}

static const struct dma_buf_attach_ops attach_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = taken_away,
};

static bool is_contiguous(struct sg_table *sgt)
{
	dma_addr_t next = sg_dma_address(sgt->sgl);
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (sg_dma_address(sg) != next)
			return false;
		next += sg_dma_len(sg);
	}
	return true;
}

/* An exporter that moves or clears the memory sets a fence on it. */
static int wait_for_exporter(struct nq_memory *memory)
{
	long left = dma_resv_wait_timeout(memory->dmabuf->resv, DMA_RESV_USAGE_KERNEL, true,
					  FENCE_TIMEOUT);

	return left < 0 ? left : left ? 0 : -ETIMEDOUT;
}

static int map(struct nq_memory *memory)
{
	struct sg_table *sgt;
	int error;

	sgt = dma_buf_map_attachment(memory->attachment, DMA_BIDIRECTIONAL);
	if (IS_ERR(sgt))
		return PTR_ERR(sgt);
	memory->sgt = sgt;
	error = is_contiguous(sgt) ? wait_for_exporter(memory) : -EOPNOTSUPP;
	if (error)
		unmap(memory);
	return error;
}

static int map_locked(struct nq_memory *memory, u64 *address)
{
	struct dma_resv *resv = memory->dmabuf->resv;
	int error;

	dma_resv_lock(resv, NULL);
	error = map(memory);
	if (!error)
		*address = sg_dma_address(memory->sgt->sgl);
	dma_resv_unlock(resv);
	return error;
}

static void let_go(struct nq_memory *memory)
{
	struct dma_buf *dmabuf = memory->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	unmap(memory);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, memory->attachment);
	dma_buf_put(dmabuf);
	kfree(memory);
}

/* Takes over the reference to the dma-buf. */
static struct nq_memory *attach(struct nq_disk *disk, struct dma_buf *dmabuf)
{
	struct nq_memory *memory;
	int error = -ENOMEM;

	memory = kzalloc_obj(*memory, GFP_KERNEL_ACCOUNT);
	if (!memory)
		goto put;
	memory->disk = disk;
	memory->dmabuf = dmabuf;
	memory->attachment = dma_buf_dynamic_attach(dmabuf, &disk->pdev->dev, &attach_ops, memory);
	if (!IS_ERR(memory->attachment))
		return memory;
	error = PTR_ERR(memory->attachment);
	kfree(memory);
put:
	dma_buf_put(dmabuf);
	return ERR_PTR(error);
}

int nq_memory_map(struct nq_disk *disk, struct peerbar_nvme_map *map)
{
	struct dma_buf *dmabuf = dma_buf_get(map->fd);
	struct nq_memory *memory;
	int error;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	map->length = dmabuf->size;
	memory = attach(disk, dmabuf);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	error = map_locked(memory, &map->address);
	if (!error)
		error = xa_alloc(&disk->memories, &map->id, memory, xa_limit_31b,
				 GFP_KERNEL_ACCOUNT);
	if (error)
		let_go(memory);
	return error;
}

int nq_memory_unmap(struct nq_disk *disk, u32 id)
{
	struct nq_memory *memory;

	memory = xa_load(&disk->memories, id);
	if (!memory || memory->unwanted)
		return -ENOENT;
	memory->unwanted = true;
	nq_memories_clear(disk);
	return 0;
}

/* Commands in progress may use all of it as long as there are pairs. */
void nq_memories_clear(struct nq_disk *disk)
{
	struct nq_memory *memory;
	unsigned long id;

	if (nq_has_pairs(disk))
		return;
	xa_for_each(&disk->memories, id, memory) {
		if (memory->unwanted) {
			xa_erase(&disk->memories, id);
			let_go(memory);
		}
	}
}

/* After nq_pairs_end(): the controller uses none of it. The attachments stay. */
void nq_memories_revoke(struct nq_disk *disk)
{
	struct nq_memory *memory;
	unsigned long id;

	xa_for_each(&disk->memories, id, memory) {
		dma_resv_lock(memory->dmabuf->resv, NULL);
		unmap(memory);
		dma_resv_unlock(memory->dmabuf->resv);
	}
}

/* Likewise. */
void nq_memories_free(struct nq_disk *disk)
{
	struct nq_memory *memory;
	unsigned long id;

	xa_for_each(&disk->memories, id, memory)
		let_go(memory);
	xa_destroy(&disk->memories);
}
