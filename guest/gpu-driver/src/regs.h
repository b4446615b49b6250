/* SPDX-License-Identifier: GPL-2.0 */
/* The device as devices/gpu/INTERFACE.md describes it. */
#ifndef PEERBAR_GPU_REGS_H
#define PEERBAR_GPU_REGS_H

#include <linux/bits.h>
#include <linux/build_bug.h>
#include <linux/types.h>

#define PB_VENDOR		0x1af4
#define PB_DEVICE		0x10f0

#define PB_BAR_REGS		0
#define PB_BAR_APERTURE		2

#define PB_REG_ID		0x00
#define PB_ID			0x50424750
#define PB_REG_VERSION		0x04
#define PB_VERSION		1
#define PB_REG_CHANNELS		0x08
#define PB_REG_FEATURES		0x0c
#define PB_FEATURE_WINDOW	BIT(0)
#define PB_REG_VRAM_SIZE	0x10
#define PB_REG_APERTURE_SIZE	0x18
#define PB_REG_CONTROL		0x20
#define PB_CONTROL_RESET	BIT(0)
#define PB_REG_STATUS		0x24
#define PB_STATUS_READY		BIT(0)
#define PB_REG_KICK		0x2c
#define PB_REG_FAULT_INFO	0x30
#define PB_FAULT_CODE		GENMASK(7, 0)
#define PB_FAULT_CHANNEL	GENMASK(15, 8)
#define PB_FAULT_WRITE		BIT(16)
#define PB_FAULT_VALID		BIT(31)
#define PB_REG_FAULT_ACK	0x34
#define PB_REG_FAULT_ADDRESS	0x38
#define PB_REG_WINDOW_INDEX	0x40
#define PB_REG_WINDOW_ENTRY	0x48
#define PB_WINDOW_PRESENT	BIT_ULL(0)

/* Number of faults that the device keeps. */
#define PB_FAULTS_KEPT		64

#define PB_CHANNEL(n)		(0x1000 + 0x100 * (n))
#define PB_CH_RING_ADDRESS	0x00
#define PB_CH_RING_SPACE	0x08
#define PB_RING_SPACE_BUS	0
#define PB_CH_RING_ENTRIES	0x0c
#define PB_CH_CONTROL		0x10
#define PB_CH_ENABLE		BIT(0)
#define PB_CH_STATUS		0x14
#define PB_CH_STATE		GENMASK(7, 0)
#define PB_CH_OFF		0
#define PB_CH_ON		1
#define PB_CH_ERROR		2
#define PB_CH_ERROR_CODE	GENMASK(15, 8)
#define PB_CH_STOPPING		BIT(16)

#define PB_DOORBELL(n)		(0x8000 + 0x40 * (n))
#define PB_DOORBELL_ASLEEP(n)	(PB_DOORBELL(n) + 4)

/* Vector 0 is the device's, then one for each channel. */
#define PB_VECTORS		17
#define PB_CHANNELS		16

/* Unit of the device's mappings and pins. */
#define PB_GPU_PAGE		0x10000ULL

/* A register of a device that is gone reads as this. */
#define PB_ALL_ONES		0xffffffffU

#define PB_OPERANDS		13

/* Maximum bytes of a command. */
#define PB_LONGEST		0x40000000ULL

enum pb_opcode {
	PB_OP_NOP = 0,
	PB_OP_COPY = 1,
	PB_OP_FILL = 2,
	PB_OP_COMPARE = 3,
	PB_OP_CRC32C = 4,
	PB_OP_LAUNCH = 5,
	PB_OP_WRITE_WORD = 6,
	PB_OP_WAIT = 7,
};

enum pb_kernel {
	PB_KERNEL_VECTOR_ADD = 0,
	PB_KERNEL_SAXPY = 1,
	PB_KERNEL_REDUCTION = 2,
	PB_KERNEL_HISTOGRAM = 3,
	PB_KERNEL_ATOMIC_ADD = 4,
	PB_KERNEL_NVME_IO = 5,
};

#define PB_OPERAND_GRID		11
#define PB_OPERAND_BLOCK	12

#define PB_FLAG_FENCE		BIT(0)
#define PB_FLAG_INTERRUPT	BIT(1)

struct pb_command {
	u8 opcode;
	u8 flags;
	__le16 spaces;
	__le32 kernel;
	__le64 fence;
	__le64 fence_value;
	__le64 operand[PB_OPERANDS];
};

static_assert(sizeof(struct pb_command) == 128);

struct pb_fence {
	__le64 value;
	__le64 result;
};

static_assert(sizeof(struct pb_fence) == 16);

#endif
