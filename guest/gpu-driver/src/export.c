// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers in VRAM as dma-bufs. The policy of a dma-buf determines which importers may attach, and
 * whether they can keep the buffer from being revoked: see include/peerbar_gpu.h. Once a buffer is
 * revoked and its importers have finished, no device uses it.
 */
#include <linux/dma-resv.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#ifdef PB_HAS_PHYS_VEC_TO_SGT
#include <linux/dma-buf-mapping.h>
#endif

#include "gpu.h"
#include "older_kernels.h"

struct pb_export {
	struct dma_buf *dmabuf;
	struct pb_buffer *buffer;
	u32 policy;		/* enum peerbar_gpu_export_policy */
	struct list_head node;	/* in pb_vram.exports */
	bool revoked;		/* under the dma_resv */
	struct work_struct drain;
	struct dma_fence *awaited;	/* by drain, NULL if it is not waiting */
	struct dma_fence_cb signalled;	/* of that fence */
};

/* Names of the policies, for messages. */
static const char *const policy_names[] = {
	[PEERBAR_GPU_EXPORT_REVOCABLE] = "revocable",
	[PEERBAR_GPU_EXPORT_PINNED] = "pinned",
	[PEERBAR_GPU_EXPORT_STATIC] = "static",
};

/* Returns the reason why the importer is refused, or NULL if it is not. */
static const char *refusal(const struct pb_export *export, struct dma_buf_attachment *attachment)
{
	if (!dev_is_pci(attachment->dev))
		return "is no PCI function";
	if (!attachment->importer_ops)
		return export->policy == PEERBAR_GPU_EXPORT_STATIC ? NULL : "attaches statically";
	if (!attachment->peer2peer)
		return "does not take memory of a peer";
	if (export->policy == PEERBAR_GPU_EXPORT_REVOCABLE && !dma_buf_attach_revocable(attachment))
		return "cannot be notified of a revocation";
	return NULL;
}

static int export_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct pb_export *export = dmabuf->priv;
	const char *reason;

	if (READ_ONCE(export->revoked))
		return -ENODEV;
	reason = refusal(export, attachment);
	if (!reason)
		return 0;
	pci_dbg(export->buffer->gpu->pdev, "a %s dma-buf is refused: %s %s\n",
		policy_names[export->policy], dev_name(attachment->dev), reason);
	return -EOPNOTSUPP;
}

#ifdef PB_HAS_PHYS_VEC_TO_SGT
static struct sg_table *map_for(struct dma_buf_attachment *attachment, struct pb_buffer *buffer,
				enum dma_data_direction direction)
{
	struct pci_dev *pdev = buffer->gpu->pdev;
	struct phys_vec *ranges;
	struct sg_table *sgt;
	unsigned int i;

	ranges = kvmalloc_array(buffer->npieces, sizeof(*ranges), GFP_KERNEL);
	if (!ranges)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < buffer->npieces; i++) {
		const struct pb_piece *piece = &buffer->pieces[i];

		ranges[i].paddr = pci_resource_start(pdev, PB_BAR_APERTURE) +
				  pb_vram_in_aperture(buffer, piece->address);
		ranges[i].len = piece->length;
	}
	/* Linux 7.3 fails with EADDRINUSE for several ranges behind a translating IOMMU. */
	sgt = dma_buf_phys_vec_to_sgt(attachment, pcim_p2pdma_provider(pdev, PB_BAR_APERTURE),
				      ranges, buffer->npieces, buffer->size, direction);
	kvfree(ranges);
	return sgt;
}

static void unmap_for(struct dma_buf_attachment *attachment, struct sg_table *sgt,
		      enum dma_data_direction direction)
{
	/* Linux 7.3 sets orig_nents to 0, and then sg_free_table() frees no entry. */
	sgt->orig_nents = sgt->nents;
	dma_buf_free_sgt(attachment, sgt, direction);
}
#else
/* Maximum bytes of an entry, whose length is an unsigned int. */
#define PB_ENTRY_BYTES SZ_2G

/* Each entry is full, except the last one of a piece. */
static unsigned int count_entries(const struct pb_buffer *buffer)
{
	unsigned int entries = 0, i;

	for (i = 0; i < buffer->npieces; i++)
		entries += DIV_ROUND_UP_ULL(buffer->pieces[i].length, PB_ENTRY_BYTES);
	return entries;
}

static void list_pages(struct sg_table *sgt, const struct pb_buffer *buffer)
{
	struct scatterlist *sg;
	u64 offset = 0, address;
	unsigned int i;

	for_each_sgtable_sg(sgt, sg, i) {
		u64 length = min_t(u64, pb_piece_at(buffer, offset, &address), PB_ENTRY_BYTES);

		sg_set_page(sg, virt_to_page(buffer->vram.pages + address), length, 0);
		offset += length;
	}
}

static struct sg_table *map_for(struct dma_buf_attachment *attachment, struct pb_buffer *buffer,
				enum dma_data_direction direction)
{
	struct sg_table *sgt;
	int error;

	/* Without pages (window mode) these kernels cannot map it. */
	if (!buffer->vram.pages)
		return ERR_PTR(-EOPNOTSUPP);
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	error = sg_alloc_table(sgt, count_entries(buffer), GFP_KERNEL);
	if (error)
		goto free_sgt;
	list_pages(sgt, buffer);
	error = dma_map_sgtable(attachment->dev, sgt, direction, DMA_ATTR_SKIP_CPU_SYNC);
	if (!error)
		return sgt;
	sg_free_table(sgt);
free_sgt:
	kfree(sgt);
	return ERR_PTR(error);
}

static void unmap_for(struct dma_buf_attachment *attachment, struct sg_table *sgt,
		      enum dma_data_direction direction)
{
	dma_unmap_sgtable(attachment->dev, sgt, direction, DMA_ATTR_SKIP_CPU_SYNC);
	sg_free_table(sgt);
	kfree(sgt);
}
#endif

/*
 * A mapping of an importer that cannot be notified pins the buffer, even without an explicit pin.
 */
static bool mapping_pins(struct dma_buf_attachment *attachment)
{
	return !dma_buf_attach_revocable(attachment);
}

static struct sg_table *export_map(struct dma_buf_attachment *attachment,
				   enum dma_data_direction direction)
{
	struct pb_export *export = attachment->dmabuf->priv;
	struct pb_buffer *buffer = export->buffer;
	struct sg_table *sgt;
	int error = 0;

	dma_resv_assert_held(attachment->dmabuf->resv);
	if (export->revoked)
		return ERR_PTR(-ENODEV);
	if (mapping_pins(attachment))
		error = pb_buffer_pin(buffer);
	if (error)
		return ERR_PTR(error);
	sgt = map_for(attachment, buffer, direction);
	if (!IS_ERR(sgt))
		atomic_inc(&buffer->vram.mapped);
	else if (mapping_pins(attachment))
		pb_buffer_unpin(buffer);
	return sgt;
}

static void export_unmap(struct dma_buf_attachment *attachment, struct sg_table *sgt,
			 enum dma_data_direction direction)
{
	struct pb_export *export = attachment->dmabuf->priv;
	struct pb_buffer *buffer = export->buffer;

	unmap_for(attachment, sgt, direction);
	if (atomic_dec_and_test(&buffer->vram.mapped))
		wake_up_all(&buffer->idle);
	if (mapping_pins(attachment))
		pb_buffer_unpin(buffer);
}

/* VRAM does not move. A revocation ends the pin of a revocable dma-buf. */
static int export_pin(struct dma_buf_attachment *attachment)
{
	struct pb_export *export = attachment->dmabuf->priv;

	if (export->revoked)
		return -ENODEV;
	if (export->policy != PEERBAR_GPU_EXPORT_REVOCABLE)
		return pb_buffer_pin(export->buffer);
	/* Without that option, the kernel itself pins for each mapping. */
	if (pb_pin_is_revocable() || !IS_ENABLED(CONFIG_DMABUF_MOVE_NOTIFY))
		return 0;
	return -EOPNOTSUPP;
}

static void export_unpin(struct dma_buf_attachment *attachment)
{
	struct pb_export *export = attachment->dmabuf->priv;

	if (export->policy != PEERBAR_GPU_EXPORT_REVOCABLE)
		pb_buffer_unpin(export->buffer);
}

/*
 * The kernel has checked that the mapping lies in the dma-buf. From here on it is like a mapping of
 * the GPU's file at the buffer's offset.
 */
static int export_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct pb_export *export = dmabuf->priv;
	struct pb_buffer *buffer = export->buffer;

	vma->vm_pgoff += buffer->vram.mmap_offset >> PAGE_SHIFT;
	return pb_vram_mmap(buffer, vma);
}

static void export_release(struct dma_buf *dmabuf)
{
	struct pb_export *export = dmabuf->priv;
	struct pb_buffer *buffer = export->buffer;

	mutex_lock(&buffer->vram.exports_lock);
	list_del(&export->node);
	mutex_unlock(&buffer->vram.exports_lock);
	kfree(export);
	pb_buffer_put(buffer);
}

static const struct dma_buf_ops export_ops = {
	.attach = export_attach,
	.pin = export_pin,
	.unpin = export_unpin,
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.mmap = export_mmap,
	.release = export_release,
};

/* Returns a fence of an importer that is not signalled yet, or NULL. */
static struct dma_fence *unsignalled(struct dma_resv *resv)
{
	struct dma_resv_iter cursor;
	struct dma_fence *fence;

	dma_resv_iter_begin(&cursor, resv, DMA_RESV_USAGE_BOOKKEEP);
	/* Skips signalled fences. */
	dma_resv_for_each_fence_unlocked(&cursor, fence) {
		dma_fence_get(fence);
		break;
	}
	dma_resv_iter_end(&cursor);
	return fence;
}

static void continue_drain(struct dma_fence *fence, struct dma_fence_cb *callback)
{
	struct pb_export *export = container_of(callback, struct pb_export, signalled);

	queue_work(pb_releases, &export->drain);
}

/*
 * Continues once importers have finished the work that was in progress at the revocation. Their
 * fences may be held by a program, so no lock is held and no worker waits, and the memory stays
 * until the last one is signalled.
 */
static void drain(struct work_struct *work)
{
	struct pb_export *export = container_of(work, struct pb_export, drain);
	struct pb_buffer *buffer = export->buffer;

	dma_fence_put(export->awaited);
	while ((export->awaited = unsignalled(export->dmabuf->resv))) {
		/* Once it is added, the next call may come, and free the export. */
		if (!dma_fence_add_callback(export->awaited, &export->signalled, continue_drain))
			return;
		dma_fence_put(export->awaited);
	}
	if (atomic_dec_and_test(&buffer->vram.draining))
		wake_up_all(&buffer->idle);
	dma_buf_put(export->dmabuf);
}

/*
 * Makes a dma-buf of the buffer, which keeps the buffer. A revoke from now on finds it in the list.
 */
struct dma_buf *pb_export_make(struct pb_buffer *buffer, u32 policy)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct pb_export *export = kzalloc(sizeof(*export), GFP_KERNEL_ACCOUNT);
	struct dma_buf *dmabuf;

	if (!export)
		return ERR_PTR(-ENOMEM);
	export->buffer = buffer;
	export->policy = policy;
	INIT_WORK(&export->drain, drain);
	info.ops = &export_ops;
	info.size = buffer->size;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = export;
	mutex_lock(&buffer->vram.exports_lock);
	dmabuf = READ_ONCE(buffer->revoked) ? ERR_PTR(-ENODEV) : dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		kfree(export);
	} else {
		export->dmabuf = dmabuf;
		/* So that a revoke also finds the mappings of the dma-buf. */
		dmabuf->file->f_mapping = buffer->gpu->inode->i_mapping;
		list_add_tail(&export->node, &buffer->vram.exports);
		kref_get(&buffer->refs);
	}
	mutex_unlock(&buffer->vram.exports_lock);
	return dmabuf;
}

/* Returns the descriptor. */
int pb_export(struct pb_buffer *buffer, u32 policy)
{
	struct dma_buf *dmabuf;
	int fd;

	if (buffer->space != PEERBAR_GPU_SPACE_VRAM || policy >= ARRAY_SIZE(policy_names))
		return -EINVAL;
	if (policy != PEERBAR_GPU_EXPORT_REVOCABLE && buffer->gpu->window) {
		pci_dbg(buffer->gpu->pdev,
			"no %s dma-buf: a reset empties the table of the window\n",
			policy_names[policy]);
		return -EOPNOTSUPP;
	}
	fd = pb_vram_show(buffer);
	if (fd)
		return fd;
	dmabuf = pb_export_make(buffer, policy);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static void revoke(struct pb_export *export)
{
	struct dma_resv *resv = export->dmabuf->resv;

	dma_resv_lock(resv, NULL);
	export->revoked = true;
	if (pb_pin_is_revocable() || !READ_ONCE(export->buffer->pinned))
		dma_buf_invalidate_mappings(export->dmabuf);
	dma_resv_unlock(resv);
}

/* Importers that do not finish in time keep the memory, as draining shows. */
void pb_exports_revoke(struct pb_buffer *buffer)
{
	struct pb_export *export;

	mutex_lock(&buffer->vram.exports_lock);
	list_for_each_entry(export, &buffer->vram.exports, node) {
		/* A file that is being released has no importers left. */
		if (!get_file_active(&export->dmabuf->file))
			continue;
		revoke(export);
		atomic_inc(&buffer->vram.draining);
		/* Takes over the reference. */
		queue_work(pb_releases, &export->drain);
	}
	mutex_unlock(&buffer->vram.exports_lock);
	if (!wait_event_timeout(buffer->idle, !atomic_read(&buffer->vram.draining),
				PB_FENCE_TIMEOUT))
		pci_warn(buffer->gpu->pdev,
			 "an importer still uses revoked memory: it is kept until the importer's fence is signalled\n");
}
