// SPDX-License-Identifier: GPL-2.0
/*
 * Window mode: the aperture is smaller than VRAM or may be revoked at run time, so a table in the
 * device maps each page of the aperture to a page of VRAM. Both are allocated in pages of the GPU.
 */
#include "gpu.h"

/* A pool that returns address 0 could not be distinguished from an empty one. */
#define POOL_BASE PB_GPU_PAGE

static struct gen_pool *pool_of(u64 size)
{
	struct gen_pool *pool = gen_pool_create(ilog2(PB_GPU_PAGE), NUMA_NO_NODE);

	if (pool && gen_pool_add(pool, POOL_BASE, size, NUMA_NO_NODE)) {
		gen_pool_destroy(pool);
		return NULL;
	}
	return pool;
}

int pb_window_init(struct pb_gpu *gpu)
{
	gpu->vram_pool = pool_of(gpu->vram_size);
	gpu->window_pool = pool_of(gpu->aperture_size);
	if (gpu->vram_pool && gpu->window_pool)
		return 0;
	pb_window_exit(gpu);
	return -ENOMEM;
}

void pb_window_exit(struct pb_gpu *gpu)
{
	if (gpu->vram_pool)
		gen_pool_destroy(gpu->vram_pool);
	if (gpu->window_pool)
		gen_pool_destroy(gpu->window_pool);
	gpu->vram_pool = NULL;
	gpu->window_pool = NULL;
}

int pb_window_alloc_vram(struct pb_gpu *gpu, u64 size, u64 *offset)
{
	unsigned long found = gen_pool_alloc(gpu->vram_pool, size);

	if (!found)
		return -ENOMEM;
	*offset = found - POOL_BASE;
	return 0;
}

void pb_window_free_vram(struct pb_gpu *gpu, u64 offset, u64 size)
{
	gen_pool_free(gpu->vram_pool, offset + POOL_BASE, size);
}

static void write_entry(struct pb_gpu *gpu, u64 aperture, u64 entry)
{
	writel(aperture / PB_GPU_PAGE, gpu->regs + PB_REG_WINDOW_INDEX);
	/* The device accepts only a write of the whole entry. */
	writeq(entry, gpu->regs + PB_REG_WINDOW_ENTRY);
}

/* With window_lock held. */
static void write_entries(struct pb_gpu *gpu, u64 aperture, u64 vram, u64 size)
{
	u64 at;

	for (at = 0; at < size; at += PB_GPU_PAGE)
		write_entry(gpu, aperture + at, (vram + at) | PB_WINDOW_PRESENT);
}

int pb_window_map(struct pb_gpu *gpu, u64 vram, u64 size, u64 *aperture)
{
	unsigned long found = gen_pool_alloc(gpu->window_pool, size);

	if (!found)
		return -ENOSPC;
	*aperture = found - POOL_BASE;
	mutex_lock(&gpu->window_lock);
	write_entries(gpu, *aperture, vram, size);
	mutex_unlock(&gpu->window_lock);
	return 0;
}

/* The GPU refuses accesses to the range from here on. */
void pb_window_clear(struct pb_gpu *gpu, u64 aperture, u64 size)
{
	u64 at;

	mutex_lock(&gpu->window_lock);
	for (at = 0; at < size; at += PB_GPU_PAGE)
		write_entry(gpu, aperture + at, 0);
	/* A device that has answered has taken all entries. */
	readl(gpu->regs + PB_REG_WINDOW_INDEX);
	mutex_unlock(&gpu->window_lock);
}

/* For a range that is cleared, and whose address nobody has. */
void pb_window_free(struct pb_gpu *gpu, u64 aperture, u64 size)
{
	gen_pool_free(gpu->window_pool, aperture + POOL_BASE, size);
}

/* After a reset, which clears the table. */
void pb_window_restore(struct pb_gpu *gpu)
{
	struct pb_buffer *buffer;

	mutex_lock(&gpu->buffers_lock);
	/*
	 * A buffer that is hidden or dropped concurrently clears its entries after this has written
	 * them, or they are not written.
	 */
	mutex_lock(&gpu->window_lock);
	list_for_each_entry(buffer, &gpu->buffers, node) {
		if (buffer->space == PEERBAR_GPU_SPACE_VRAM && !test_bit(0, &buffer->dropped) &&
		    buffer->vram.window != PB_NOT_SHOWN && !READ_ONCE(buffer->vram.hidden))
			write_entries(gpu, buffer->vram.window, buffer->pieces[0].address,
				      buffer->size);
	}
	mutex_unlock(&gpu->window_lock);
	mutex_unlock(&gpu->buffers_lock);
}
