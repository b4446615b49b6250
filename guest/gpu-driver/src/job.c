// SPDX-License-Identifier: GPL-2.0
/*
 * One command of a program: checked against its buffers, on which it holds references, and given to
 * the device in as many parts as its memory has pieces.
 */
#include <linux/bitops.h>
#include <linux/dma-buf.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "gpu.h"

static u64 units_of(const struct peerbar_gpu_submit *request, const struct pb_operation *operation)
{
	u64 units, threads;

	if (!operation->nstreams)
		return 1;
	units = request->operand[operation->count].offset;
	if (request->opcode != PB_OP_LAUNCH)
		return units;
	/* Threads beyond the units do nothing, and units beyond the threads are not touched. */
	if (check_mul_overflow(request->operand[PB_OPERAND_GRID].offset,
			       request->operand[PB_OPERAND_BLOCK].offset, &threads))
		return units;
	return min(units, threads);
}

/* Returns the bytes that the operation needs of an operand, or 0 if that is unknown. */
static u64 bytes_needed(const struct pb_job *job, unsigned int operand, unsigned int *unit)
{
	const struct pb_operation *operation = job->operation;
	unsigned int i;

	*unit = 0;
	for (i = 0; i < operation->nstreams; i++) {
		if (operation->streams[i].operand == operand) {
			*unit = operation->streams[i].unit;
			return size_mul(job->units, *unit);
		}
	}
	if (!(operation->fixed & BIT(operand)))
		return 0;
	return operation->fixed_needed ? operation->fixed_needed(&job->request, operand) :
					 operation->fixed_length;
}

static int check_operand(const struct pb_job *job, unsigned int operand)
{
	const struct peerbar_gpu_operand *at = &job->request.operand[operand];
	const struct pb_buffer *buffer = job->buffers[operand];
	unsigned int unit;
	u64 bytes = max(bytes_needed(job, operand, &unit), job->request.length[operand]);
	u64 end, address;

	if (check_add_overflow(at->offset, bytes, &end) || end > buffer->size)
		return -ERANGE;
	if (!bytes)
		return 0;
	/*
	 * An operand that is processed in units is split between units, so no unit may lie in two
	 * pieces.
	 */
	if (unit && !(job->operation->fixed & BIT(operand)))
		return buffer->npieces > 1 && at->offset % unit ? -EINVAL : 0;
	if (unit && bytes > PB_LONGEST)
		return -EOPNOTSUPP;
	return pb_piece_at(buffer, at->offset, &address) < bytes ? -EOPNOTSUPP : 0;
}

/* The job keeps the buffer of an operand until its end. */
static int find_operand(struct pb_job *job, struct pb_file *file, unsigned int operand)
{
	const struct peerbar_gpu_operand *at = &job->request.operand[operand];

	job->buffers[operand] = pb_file_buffer(file, at->handle);
	if (!job->buffers[operand])
		return -ENOENT;
	return job->buffers[operand]->space == at->space ? 0 : -EINVAL;
}

static void end_all(struct pb_job *job)
{
	unsigned long begun = job->begun;
	unsigned int i;

	for_each_set_bit(i, &begun, PB_OPERANDS)
		pb_buffer_end(job->buffers[i]);
	job->begun = 0;
}

/* Begins the use of all buffers, or of none; -EDEADLK if the lock of one is held. */
static int try_begin_all(struct pb_job *job, struct pb_buffer **locked)
{
	unsigned long mask = job->request.address_mask;
	unsigned int i;
	int error;

	for_each_set_bit(i, &mask, PB_OPERANDS) {
		error = pb_buffer_begin(job->buffers[i], !job->begun);
		if (error) {
			*locked = job->buffers[i];
			end_all(job);
			return error;
		}
		job->begun |= BIT(i);
	}
	return 0;
}

/*
 * A revocation of a dma-buf holds the dma-buf's lock while it waits for the jobs that use it. So a
 * job waits for the lock of a dma-buf only while it uses none.
 */
static int begin_all(struct pb_job *job)
{
	struct pb_buffer *locked;
	int error;

	while ((error = try_begin_all(job, &locked)) == -EDEADLK) {
		error = pb_buffer_begin(locked, true);
		if (error)
			return error;
		pb_buffer_end(locked);
	}
	return error;
}

/*
 * Addresses are allowed only where the operation has them: an address that the device took for a
 * number would reveal the place of memory to the program.
 */
static int check_mask(const struct pb_operation *operation, u32 mask)
{
	u32 needed = operation->fixed;
	unsigned int i;

	for (i = 0; i < operation->nstreams; i++)
		needed |= BIT(operation->streams[i].operand);
	if (mask >= BIT(PB_OPERANDS))
		return -EINVAL;
	return needed && mask != needed ? -EINVAL : 0;
}

/*
 * The device refuses an overlap of source and destination, but of a split command it sees one part
 * at a time, and would copy data that an earlier part has written.
 */
static bool overlaps_in_parts(const struct pb_job *job)
{
	u64 from = job->request.operand[0].offset, to = job->request.operand[1].offset;
	u64 distance = from < to ? to - from : from - to;
	const struct pb_buffer *buffer = job->buffers[0];

	if (!job->operation->apart || buffer != job->buffers[1])
		return false;
	return distance && distance < job->units &&
	       (buffer->npieces > 1 || job->units > PB_LONGEST);
}

static int take_operands(struct pb_job *job, struct pb_file *file)
{
	unsigned long mask = job->request.address_mask;
	unsigned int i;
	int error;

	for_each_set_bit(i, &mask, PB_OPERANDS) {
		error = find_operand(job, file, i);
		if (error)
			return error;
	}
	error = begin_all(job);
	if (error)
		return error;
	for_each_set_bit(i, &mask, PB_OPERANDS) {
		error = check_operand(job, i);
		if (error)
			return error;
	}
	return overlaps_in_parts(job) ? -EOPNOTSUPP : 0;
}

struct pb_job *pb_job_create(struct pb_file *file, const struct peerbar_gpu_submit *request)
{
	const struct pb_operation *operation = pb_operation_of(request->opcode, request->kernel);
	struct pb_job *job;
	int error;

	error = check_mask(operation, request->address_mask);
	if (error || request->opcode > U8_MAX)
		return ERR_PTR(-EINVAL);
	job = kzalloc(sizeof(*job), GFP_KERNEL_ACCOUNT);
	if (!job)
		return ERR_PTR(-ENOMEM);
	job->operation = operation;
	job->request = *request;
	job->units = units_of(request, operation);
	if (operation->results == PB_RESULT_FIRST_DIFFERENCE)
		job->result = job->units;
	error = take_operands(job, file);
	if (error) {
		pb_job_free(job);
		return ERR_PTR(error);
	}
	return job;
}

/* May be called while a dma_resv must not be taken, so buffers are released later. */
static void release_buffers(struct pb_job *job)
{
	unsigned int i;

	end_all(job);
	for (i = 0; i < PB_OPERANDS; i++) {
		if (job->buffers[i])
			pb_buffer_put_later(job->buffers[i]);
		job->buffers[i] = NULL;
	}
}

void pb_job_free(struct pb_job *job)
{
	release_buffers(job);
	kfree(job);
}

bool pb_job_uses(const struct pb_job *job, const struct dma_buf *dmabuf)
{
	unsigned int i;

	for (i = 0; i < PB_OPERANDS; i++) {
		const struct pb_buffer *buffer = job->buffers[i];

		if (buffer && buffer->space == PEERBAR_GPU_SPACE_DMABUF &&
		    buffer->import.attachment->dmabuf == dmabuf)
			return true;
	}
	return false;
}

/*
 * For a job without commands at the device. Its buffers are released now, and the device executes a
 * no-op in its place, so that it ends in order, with the error.
 */
void pb_job_cancel(struct pb_job *job, u32 error)
{
	release_buffers(job);
	job->error = error;
	job->operation = pb_operation_of(PB_OP_NOP, 0);
	job->request = (struct peerbar_gpu_submit){ .opcode = PB_OP_NOP };
	job->units = 1;
	job->sent = 0;
	job->done = 0;
	job->started = false;
}

bool pb_job_is_sent(const struct pb_job *job)
{
	return job->started && job->sent == job->units;
}

/*
 * Returns how many of the remaining units the device takes at once: those at consecutive addresses
 * in all operands.
 */
static u64 units_of_part(const struct pb_job *job)
{
	const struct pb_operation *operation = job->operation;
	u64 units = job->units - job->sent;
	unsigned int i;

	for (i = 0; i < operation->nstreams && units; i++) {
		const struct pb_stream *stream = &operation->streams[i];
		const struct pb_buffer *buffer = job->buffers[stream->operand];
		u64 start = job->request.operand[stream->operand].offset;
		u64 bytes, address;

		bytes = pb_piece_at(buffer, start + job->sent * stream->unit, &address);
		units = min(units, div_u64(min(bytes, PB_LONGEST), stream->unit));
	}
	return units;
}

static u64 operand_of_part(const struct pb_job *job, unsigned int operand)
{
	const struct pb_operation *operation = job->operation;
	u64 value = job->request.operand[operand].offset;
	unsigned int i;
	u64 address;

	if (!job->buffers[operand])
		return operation->pattern & BIT(operand) ? ror64(value, job->sent % 8 * 8) : value;
	for (i = 0; i < operation->nstreams; i++) {
		if (operation->streams[i].operand == operand)
			value += job->sent * operation->streams[i].unit;
	}
	pb_piece_at(job->buffers[operand], value, &address);
	return address;
}

/* Writes the next part; the caller adds fence and flags. Returns its number of units. */
u64 pb_job_send(struct pb_job *job, struct pb_command *command)
{
	u64 units = units_of_part(job);
	u16 spaces = 0;
	unsigned int i;

	command->opcode = job->request.opcode;
	command->kernel = cpu_to_le32(job->request.kernel);
	for (i = 0; i < PB_OPERANDS; i++) {
		command->operand[i] = cpu_to_le64(operand_of_part(job, i));
		if (job->buffers[i] && job->buffers[i]->space == PEERBAR_GPU_SPACE_VRAM)
			spaces |= BIT(i);
	}
	if (job->operation->nstreams)
		command->operand[job->operation->count] = cpu_to_le64(units);
	command->spaces = cpu_to_le16(spaces);
	job->started = true;
	job->sent += units;
	return units;
}

void pb_job_done(struct pb_job *job, u64 units, u64 result)
{
	switch (job->operation->results) {
	case PB_RESULT_SUM:
		job->result += result;
		break;
	case PB_RESULT_FIRST_DIFFERENCE:
		if (job->result == job->units && result < units)
			job->result = job->done + result;
		break;
	case PB_RESULT_LAST:
		job->result = result;
		break;
	}
	job->done += units;
}

/* The device has forgotten the commands that it had not completed. */
void pb_job_rewind(struct pb_job *job)
{
	job->sent = job->done;
	job->started = job->done > 0;
}
