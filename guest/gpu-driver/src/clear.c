// SPDX-License-Identifier: GPL-2.0
/*
 * VRAM is cleared before it has an owner. The GPU does it itself, as the first user of the driver:
 * with its own channel and the same requests as programs. The processor has only a slow path to a
 * window, and none to memory beyond the aperture.
 */
#include "gpu.h"

/* Far more than the largest buffer takes. */
#define CLEAR_TIMEOUT_NS (60ULL * NSEC_PER_SEC)

int pb_clear_init(struct pb_gpu *gpu)
{
	struct pb_file *file = pb_file_new(gpu);
	struct pb_channel *channel;

	if (IS_ERR(file))
		return PTR_ERR(file);
	channel = pb_channel_open(gpu, file);
	if (IS_ERR(channel)) {
		pb_file_end(file);
		return PTR_ERR(channel);
	}
	file->channel = channel;
	gpu->clearing = file;
	return 0;
}

void pb_clear_exit(struct pb_gpu *gpu)
{
	pb_file_end(gpu->clearing);
}

static int submit_fill(struct pb_buffer *buffer, u64 *fence)
{
	struct pb_file *file = buffer->gpu->clearing;
	struct peerbar_gpu_submit fill = { .opcode = PB_OP_FILL, .address_mask = BIT(0) };
	int error;

	kref_get(&buffer->refs);
	error = pb_file_add(file, buffer, &fill.operand[0].handle);
	if (error)
		return error;
	fill.operand[0].space = PEERBAR_GPU_SPACE_VRAM;
	fill.operand[1].offset = buffer->size;
	error = pb_file_submit(file, &fill);
	*fence = fill.fence;
	/* The command holds its own reference. */
	pb_buffer_put(xa_erase(&file->buffers, fill.operand[0].handle));
	return error;
}

/* Clears the buffer. After an error it must not be allocated. */
int pb_clear(struct pb_buffer *buffer)
{
	struct pb_file *file = buffer->gpu->clearing;
	struct peerbar_gpu_wait wait = { .timeout_ns = CLEAR_TIMEOUT_NS };
	int error;

	error = submit_fill(buffer, &wait.fence) ?: pb_file_wait(file, &wait);
	if (error == -EINTR)
		return -ERESTARTSYS;
	return error ?: wait.error ? -EIO : 0;
}
