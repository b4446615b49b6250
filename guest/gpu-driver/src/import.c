// SPDX-License-Identifier: GPL-2.0
/*
 * dma-bufs of other exporters (or of our own) as operands. The attachment is dynamic: the exporter
 * may revoke the memory at any time. Commands in progress then end first, or are aborted if they
 * take long, and the next command maps it again.
 */
#include <linux/dma-resv.h>
#include <linux/slab.h>

#include "gpu.h"
#include "older_kernels.h"

/* With the dma_resv held. */
static void unmap(struct pb_buffer *buffer)
{
	struct pb_import *import = &buffer->import;

	if (!import->sgt)
		return;
	dma_buf_unmap_attachment(import->attachment, import->sgt, DMA_BIDIRECTIONAL);
	import->sgt = NULL;
	pb_pieces_clear(buffer);
}

/*
 * For all imports of the dma-buf: otherwise a program with many of them could make each one wait
 * for its full time.
 */
static void take_back(struct pb_gpu *gpu, const struct dma_buf *dmabuf)
{
	unsigned int i;

	for (i = 0; i < PB_CHANNELS; i++)
		pb_channel_take_back(&gpu->channels[i], dmabuf);
}

/*
 * With the dma_resv held, so no command begins. The exporter waits here, perhaps with its own
 * locks, and a program chooses the number of commands and their duration. A command that had begun
 * its use before, but was not queued yet, is found the next time.
 */
static void taken_away(struct dma_buf_attachment *attachment)
{
	struct pb_buffer *buffer = attachment->importer_priv;

	while (!wait_event_timeout(buffer->idle, !atomic_read(&buffer->busy), PB_REVOKE_TIMEOUT))
		take_back(buffer->gpu, attachment->dmabuf);
	unmap(buffer);
}

static const struct dma_buf_attach_ops attach_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = taken_away,
};

/* With the dma_resv held. */
static int map(struct pb_buffer *buffer)
{
	struct pb_import *import = &buffer->import;
	int error;

	import->sgt = dma_buf_map_attachment(import->attachment, DMA_BIDIRECTIONAL);
	if (IS_ERR(import->sgt)) {
		error = PTR_ERR(import->sgt);
		import->sgt = NULL;
		return error;
	}
	error = pb_pieces_of(buffer, import->sgt);
	if (error)
		unmap(buffer);
	return error;
}

static int import_begin(struct pb_buffer *buffer, bool wait)
{
	struct dma_resv *resv = buffer->import.attachment->dmabuf->resv;
	long waited;
	int error;

	if (wait)
		error = dma_resv_lock_interruptible(resv, NULL);
	else
		error = dma_resv_trylock(resv) ? 0 : -EDEADLK;
	if (error)
		return error;
	if (!buffer->import.sgt)
		error = map(buffer);
	if (!error) {
		/* Writes to the buffer, and moves of it, must have completed. */
		waited = dma_resv_wait_timeout(resv, dma_resv_usage_rw(true), true,
					       PB_FENCE_TIMEOUT);
		error = waited < 0 ? waited : waited ? 0 : -ETIMEDOUT;
	}
	if (!error)
		atomic_inc(&buffer->busy);
	dma_resv_unlock(resv);
	return error;
}

static void import_drop(struct pb_buffer *buffer)
{
	struct dma_buf_attachment *attachment = buffer->import.attachment;
	struct dma_buf *dmabuf = attachment->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	unmap(buffer);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, attachment);
	dma_buf_put(dmabuf);
}

static const struct pb_buffer_ops import_ops = {
	.begin = import_begin,
	.drop = import_drop,
};

static int first_map(struct pb_buffer *buffer)
{
	int error;

	dma_resv_lock(buffer->import.attachment->dmabuf->resv, NULL);
	error = map(buffer);
	dma_resv_unlock(buffer->import.attachment->dmabuf->resv);
	return error;
}

/* Fails immediately, not at the first command, if the GPU cannot reach the memory. */
struct pb_buffer *pb_import_create(struct pb_gpu *gpu, int fd)
{
	struct dma_buf_attachment *attachment;
	struct pb_buffer *buffer;
	struct dma_buf *dmabuf;
	int error;

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer) {
		dma_buf_put(dmabuf);
		return ERR_PTR(-ENOMEM);
	}
	/* The attachment may call back before it is known here. */
	init_waitqueue_head(&buffer->idle);
	attachment = dma_buf_dynamic_attach(dmabuf, &gpu->pdev->dev, &attach_ops, buffer);
	if (IS_ERR(attachment)) {
		kfree(buffer);
		dma_buf_put(dmabuf);
		return ERR_CAST(attachment);
	}
	buffer->import.attachment = attachment;
	pb_buffer_init(buffer, gpu, &import_ops, PEERBAR_GPU_SPACE_DMABUF, dmabuf->size);
	error = first_map(buffer);
	if (error) {
		pb_buffer_put(buffer);
		return ERR_PTR(error);
	}
	return buffer;
}
