// SPDX-License-Identifier: GPL-2.0
/*
 * The controller's doorbells as a dma-buf, so that another device can write them. They are in
 * nvme's BAR: all importers must have released it before nvme leaves the controller.
 */
#include <linux/dma-buf-mapping.h>
#include <linux/dma-resv.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include <nvme.h>

#include "disk.h"

#define BAR_REGISTERS	0

struct nq_doorbells {
	struct kref refs;	/* the file's, and the dma-buf's */
	struct dma_buf *dmabuf;	/* a reference until it is revoked */
	struct pci_dev *pdev;
	u64 size;
	bool revoked;		/* under the dma_resv */
	atomic_t mapped;
	wait_queue_head_t idle;
};

static void free_doorbells(struct kref *refs)
{
	struct nq_doorbells *doorbells = container_of(refs, struct nq_doorbells, refs);

	pci_dev_put(doorbells->pdev);
	kfree(doorbells);
}

static int doorbells_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct nq_doorbells *doorbells = dmabuf->priv;

	if (READ_ONCE(doorbells->revoked))
		return -ENODEV;
	if (!dev_is_pci(attachment->dev) || !attachment->peer2peer ||
	    !dma_buf_attach_revocable(attachment))
		return -EOPNOTSUPP;
	return 0;
}

static struct sg_table *doorbells_map(struct dma_buf_attachment *attachment,
				      enum dma_data_direction direction)
{
	struct nq_doorbells *doorbells = attachment->dmabuf->priv;
	struct pci_dev *pdev = doorbells->pdev;
	struct phys_vec range = {
		.paddr = pci_resource_start(pdev, BAR_REGISTERS) + NVME_REG_DBS,
		.len = doorbells->size,
	};
	struct sg_table *sgt;

	dma_resv_assert_held(attachment->dmabuf->resv);
	if (doorbells->revoked)
		return ERR_PTR(-ENODEV);
	sgt = dma_buf_phys_vec_to_sgt(attachment, pcim_p2pdma_provider(pdev, BAR_REGISTERS),
				      &range, 1, doorbells->size, direction);
	if (!IS_ERR(sgt))
		atomic_inc(&doorbells->mapped);
	return sgt;
}

static void doorbells_unmap(struct dma_buf_attachment *attachment, struct sg_table *sgt,
			    enum dma_data_direction direction)
{
	struct nq_doorbells *doorbells = attachment->dmabuf->priv;

	/* Linux 7.3 sets orig_nents to 0, and then sg_free_table() frees no entry. */
	sgt->orig_nents = sgt->nents;
	dma_buf_free_sgt(attachment, sgt, direction);
	if (atomic_dec_and_test(&doorbells->mapped))
		wake_up_all(&doorbells->idle);
}

static void doorbells_release(struct dma_buf *dmabuf)
{
	struct nq_doorbells *doorbells = dmabuf->priv;

	kref_put(&doorbells->refs, free_doorbells);
}

static const struct dma_buf_ops doorbells_ops = {
	.attach = doorbells_attach,
	.map_dma_buf = doorbells_map,
	.unmap_dma_buf = doorbells_unmap,
	.release = doorbells_release,
};

/* NVMe Base 2.0, 3.1.4: two for each queue, at a stride. */
u64 nq_doorbell(const struct nq_disk *disk, u32 queue, bool head)
{
	return (2ULL * queue + head) * (4ULL << NVME_CAP_STRIDE(disk->ctrl->cap));
}

static struct dma_buf *export(struct nq_doorbells *doorbells)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);

	info.ops = &doorbells_ops;
	info.size = doorbells->size;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = doorbells;
	return dma_buf_export(&info);
}

static int make(struct nq_disk *disk)
{
	u64 size = PAGE_ALIGN(nq_doorbell(disk, disk->granted + 1, false));
	struct nq_doorbells *doorbells;

	if (NVME_REG_DBS + size > pci_resource_len(disk->pdev, BAR_REGISTERS))
		return -EIO;
	doorbells = kzalloc_obj(*doorbells);
	if (!doorbells)
		return -ENOMEM;
	kref_init(&doorbells->refs);
	init_waitqueue_head(&doorbells->idle);
	doorbells->pdev = pci_dev_get(disk->pdev);
	doorbells->size = size;
	doorbells->dmabuf = export(doorbells);
	if (IS_ERR(doorbells->dmabuf)) {
		int error = PTR_ERR(doorbells->dmabuf);

		kref_put(&doorbells->refs, free_doorbells);
		return error;
	}
	/* The dma-buf's. */
	kref_get(&doorbells->refs);
	disk->doorbells = doorbells;
	return 0;
}

/* Returns a descriptor. */
int nq_doorbells_export(struct nq_disk *disk)
{
	int error = disk->doorbells ? 0 : make(disk);
	struct dma_buf *dmabuf;
	int fd;

	if (error)
		return error;
	dmabuf = disk->doorbells->dmabuf;
	get_dma_buf(dmabuf);
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

/* Nobody writes them any more once this returns. */
void nq_doorbells_revoke(struct nq_disk *disk)
{
	struct nq_doorbells *doorbells = disk->doorbells;
	struct dma_buf *dmabuf;

	if (!doorbells || !doorbells->dmabuf)
		return;
	dmabuf = doorbells->dmabuf;
	dma_resv_lock(dmabuf->resv, NULL);
	doorbells->revoked = true;
	dma_buf_invalidate_mappings(dmabuf);
	dma_resv_unlock(dmabuf->resv);
	dma_resv_wait_timeout(dmabuf->resv, DMA_RESV_USAGE_BOOKKEEP, false, MAX_SCHEDULE_TIMEOUT);
	wait_event(doorbells->idle, !atomic_read(&doorbells->mapped));
	doorbells->dmabuf = NULL;
	dma_buf_put(dmabuf);
}

/* After nq_doorbells_revoke(). */
void nq_doorbells_free(struct nq_disk *disk)
{
	if (disk->doorbells)
		kref_put(&disk->doorbells->refs, free_doorbells);
	disk->doorbells = NULL;
}
