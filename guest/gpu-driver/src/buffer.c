// SPDX-License-Identifier: GPL-2.0
/* Buffers of any kind: references, commands in progress, revocation, and release. */
#include <linux/slab.h>

#include "gpu.h"

/* Releases the memory, once: either with the last reference or when the device is removed. */
static void drop(struct pb_buffer *buffer)
{
	if (test_and_set_bit(0, &buffer->dropped))
		return;
	buffer->ops->drop(buffer);
	if (atomic_dec_and_test(&buffer->gpu->holding))
		wake_up_all(&buffer->gpu->left);
}

static void release(struct pb_buffer *buffer)
{
	struct pb_gpu *gpu = buffer->gpu;

	drop(buffer);
	mutex_lock(&gpu->buffers_lock);
	list_del(&buffer->node);
	mutex_unlock(&gpu->buffers_lock);
	pb_pieces_clear(buffer);
	kfree(buffer);
	pb_gpu_put(gpu);
}

static void release_now(struct kref *refs)
{
	release(container_of(refs, struct pb_buffer, refs));
}

static void release_work(struct work_struct *work)
{
	release(container_of(work, struct pb_buffer, release));
}

static void release_later(struct kref *refs)
{
	struct pb_buffer *buffer = container_of(refs, struct pb_buffer, refs);

	queue_work(pb_releases, &buffer->release);
}

/* Publishes the buffer; from here on its last reference calls ops->drop. */
void pb_buffer_init(struct pb_buffer *buffer, struct pb_gpu *gpu,
		    const struct pb_buffer_ops *ops, u32 space, u64 size)
{
	kref_init(&buffer->refs);
	buffer->gpu = gpu;
	buffer->ops = ops;
	buffer->space = space;
	buffer->size = size;
	mutex_init(&buffer->lock);
	mutex_init(&buffer->telling);
	init_waitqueue_head(&buffer->idle);
	INIT_WORK(&buffer->release, release_work);
	kref_get(&gpu->refs);
	atomic_inc(&gpu->holding);
	mutex_lock(&gpu->buffers_lock);
	list_add_tail(&buffer->node, &gpu->buffers);
	mutex_unlock(&gpu->buffers_lock);
}

void pb_buffer_put(struct pb_buffer *buffer)
{
	kref_put(&buffer->refs, release_now);
}

/* For callers that must not block, as the release may. */
void pb_buffer_put_later(struct pb_buffer *buffer)
{
	kref_put(&buffer->refs, release_later);
}

/* Begins the use of the buffer by a command. */
int pb_buffer_begin(struct pb_buffer *buffer, bool wait)
{
	if (READ_ONCE(buffer->revoked))
		return -ENODEV;
	if (buffer->ops->begin)
		return buffer->ops->begin(buffer, wait);
	atomic_inc(&buffer->busy);
	return 0;
}

void pb_buffer_end(struct pb_buffer *buffer)
{
	if (atomic_dec_and_test(&buffer->busy))
		wake_up_all(&buffer->idle);
}

/* Until it is unpinned, only a removal of the device revokes the buffer. */
int pb_buffer_pin(struct pb_buffer *buffer)
{
	int error = -ENODEV;

	mutex_lock(&buffer->lock);
	if (!buffer->revoked) {
		WRITE_ONCE(buffer->pinned, buffer->pinned + 1);
		error = 0;
	}
	mutex_unlock(&buffer->lock);
	return error;
}

void pb_buffer_unpin(struct pb_buffer *buffer)
{
	mutex_lock(&buffer->lock);
	WRITE_ONCE(buffer->pinned, buffer->pinned - 1);
	if (!buffer->pinned)
		wake_up_all(&buffer->idle);
	mutex_unlock(&buffer->lock);
}

/*
 * Marks the buffer and notifies its holders, once. -EBUSY if it is pinned, unless the device
 * leaves.
 */
static int revoke(struct pb_buffer *buffer, bool leaves)
{
	int error = 0;
	bool again;

	mutex_lock(&buffer->telling);
	mutex_lock(&buffer->lock);
	again = buffer->revoked;
	if (!again && buffer->pinned && !leaves)
		error = -EBUSY;
	else
		WRITE_ONCE(buffer->revoked, true);
	mutex_unlock(&buffer->lock);
	if (!error && !again && buffer->ops->revoke)
		buffer->ops->revoke(buffer);
	mutex_unlock(&buffer->telling);
	return error;
}

/* If it succeeds, all holders have been notified, possibly by a concurrent revoke. */
int pb_buffer_revoke(struct pb_buffer *buffer)
{
	return revoke(buffer, false);
}

static bool is_to_revoke(const struct pb_buffer *buffer)
{
	return !READ_ONCE(buffer->revoked);
}

static bool is_to_drop(const struct pb_buffer *buffer)
{
	return !test_bit(0, &buffer->dropped);
}

/* It may be of this GPU's own memory, which then waits for it. */
static bool is_import_to_drop(const struct pb_buffer *buffer)
{
	return buffer->space == PEERBAR_GPU_SPACE_DMABUF && is_to_drop(buffer);
}

static struct pb_buffer *next(struct pb_gpu *gpu, bool (*is_wanted)(const struct pb_buffer *buffer))
{
	struct pb_buffer *buffer;

	mutex_lock(&gpu->buffers_lock);
	list_for_each_entry(buffer, &gpu->buffers, node) {
		if (is_wanted(buffer) && kref_get_unless_zero(&buffer->refs)) {
			mutex_unlock(&gpu->buffers_lock);
			return buffer;
		}
	}
	mutex_unlock(&gpu->buffers_lock);
	return NULL;
}

static void drop_all(struct pb_gpu *gpu, bool (*is_wanted)(const struct pb_buffer *buffer))
{
	struct pb_buffer *buffer;

	while ((buffer = next(gpu, is_wanted))) {
		drop(buffer);
		pb_buffer_put(buffer);
	}
}

/*
 * The device is removed: all buffers are revoked from their holders, and no new ones are made. All
 * holders are notified before any slow one is waited for.
 */
void pb_buffers_leave(struct pb_gpu *gpu)
{
	struct pb_buffer *buffer;

	while ((buffer = next(gpu, is_to_revoke))) {
		revoke(buffer, true);
		pb_buffer_put(buffer);
	}
	drop_all(gpu, is_import_to_drop);
	drop_all(gpu, is_to_drop);
	/* Buffers whose last reference has been dropped may still be releasing their memory. */
	wait_event_idle(gpu->left, !atomic_read(&gpu->holding));
}
