// SPDX-License-Identifier: GPL-2.0
/*
 * The driver's knowledge of each operation, so that an operation on memory that is not contiguous
 * can be split (devices/gpu/INTERFACE.md, Commands).
 */
#include <linux/overflow.h>

#include "gpu.h"

/* Bytes of the word that is written or waited for; the device refuses other sizes. */
static u64 word_needed(const struct peerbar_gpu_submit *request, unsigned int operand)
{
	return request->operand[2].offset == 4 ? 4 : 8;
}

/* Submission and completion queue, their doorbells, their state, the requests. */
static u64 nvme_io_needed(const struct peerbar_gpu_submit *request, unsigned int operand)
{
	u64 requests = request->operand[6].offset, entries = request->operand[7].offset;

	switch (operand) {
	case 0:
		return lower_32_bits(entries) * 64ULL;
	case 1:
		return upper_32_bits(entries) * 16ULL;
	case 2:
	case 3:
		return 4;
	case 4:
		return 32;
	default:
		return size_mul(requests, 32);
	}
}

static const struct pb_operation operations[] = {
	{
		.opcode = PB_OP_COPY,
		.repeatable = true, .apart = true,
		.nstreams = 2, .streams = { { 0, 1 }, { 1, 1 } },
		.count = 2,
	}, {
		.opcode = PB_OP_FILL,
		.repeatable = true,
		.nstreams = 1, .streams = { { 0, 1 } },
		.count = 1, .pattern = BIT(2),
	}, {
		.opcode = PB_OP_COMPARE,
		.repeatable = true,
		.nstreams = 2, .streams = { { 0, 1 }, { 1, 1 } },
		.count = 2, .results = PB_RESULT_FIRST_DIFFERENCE,
	}, {
		/* Checksums of parts cannot be combined, so there is one part. */
		.opcode = PB_OP_CRC32C,
		.repeatable = true,
		.nstreams = 1, .streams = { { 0, 1 } },
		.count = 1, .fixed = BIT(0),
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_VECTOR_ADD,
		.nstreams = 3, .streams = { { 0, 4 }, { 1, 4 }, { 2, 4 } },
		.count = 3,
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_SAXPY,
		.nstreams = 2, .streams = { { 0, 4 }, { 1, 4 } },
		.count = 2,
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_REDUCTION,
		.repeatable = true,
		.nstreams = 1, .streams = { { 0, 4 } },
		.count = 1, .results = PB_RESULT_SUM,
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_HISTOGRAM,
		.nstreams = 1, .streams = { { 0, 1 } },
		.count = 1, .fixed = BIT(2), .fixed_length = 256 * sizeof(u32),
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_ATOMIC_ADD,
		.fixed = BIT(0), .fixed_length = sizeof(u64),
	}, {
		/* A register may treat every write as a separate one. */
		.opcode = PB_OP_WRITE_WORD,
		.fixed = BIT(0), .fixed_needed = word_needed,
	}, {
		.opcode = PB_OP_WAIT,
		.repeatable = true,
		.fixed = BIT(0), .fixed_needed = word_needed,
	}, {
		.opcode = PB_OP_LAUNCH, .kernel = PB_KERNEL_NVME_IO,
		.fixed = GENMASK(5, 0), .fixed_needed = nvme_io_needed,
	},
};

/*
 * All other operations have no operands that the device would take for addresses, and are passed to
 * it unchanged, because it reports their errors better. An operation with address operands must be
 * listed above, or programs could choose the addresses.
 */
static const struct pb_operation whole = { .repeatable = true };

const struct pb_operation *pb_operation_of(u32 opcode, u32 kernel)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(operations); i++) {
		const struct pb_operation *operation = &operations[i];

		if (operation->opcode == opcode &&
		    (opcode != PB_OP_LAUNCH || operation->kernel == kernel))
			return operation;
	}
	return &whole;
}
