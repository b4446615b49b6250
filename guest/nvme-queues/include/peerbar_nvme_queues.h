/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/peerbar-nvme-queues: I/O queues of an NVMe controller in addition to those of Linux' nvme
 * driver, which keeps the controller. They lie in the memory of a dma-buf, such as VRAM, and the
 * owner of that memory drives them, such as a GPU. They have no interrupt.
 *
 * An open file has one controller. Opening it requires CAP_SYS_RAWIO: commands in such queues
 * address their data by DMA addresses of the controller, which reach everything that nvme has
 * mapped for it, and without an IOMMU all memory.
 *
 * Closing the file revokes the doorbells, deletes the queues and releases the memory, in this
 * order.
 */
#ifndef PEERBAR_NVME_QUEUES_H
#define PEERBAR_NVME_QUEUES_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Takes the controller of an open /dev/nvmeN. EBUSY if the file has one; EINVAL if fd is something
 * else, EOPNOTSUPP if the controller is not a PCI function, ENODEV if nvme does not drive it,
 * EAGAIN while nvme resets it.
 */
struct peerbar_nvme_attach {
	__s32 fd;		/* in: an open /dev/nvmeN */
	__u32 queues;		/* out: I/O queue pairs that the controller has granted */
	__u32 linux_queues;	/* out: number of them that nvme uses */
	__u32 entries;		/* out: the maximum of a queue */
};

/*
 * Maps a dma-buf for the controller. If the exporter revokes it, all of the controller's queues of
 * this file are deleted, since the controller may be using the memory. EOPNOTSUPP if it is not at
 * consecutive addresses.
 */
struct peerbar_nvme_map {
	__s32 fd;		/* in: a dma-buf */
	__u32 id;		/* out */
	__u64 address;		/* out: of its first byte, for the controller */
	__u64 length;		/* out: bytes */
};

/* Unmaps it: immediately, or with the last queues of the file, whose commands may use it. */
struct peerbar_nvme_unmap {
	__u32 id;
	__u32 pad;
};

/*
 * Creates a pair of queues. Both start at pages of 4 KiB. ENOSPC if the controller has granted no
 * more queues than nvme has: it must grant more than nvme requests. EAGAIN if nvme has reset the
 * controller in the meantime. ENODEV if the memory was revoked.
 */
struct peerbar_nvme_create {
	__u32 memory;		/* in: id of a mapped dma-buf */
	__u32 entries;		/* in: of each queue, 2 or more */
	__u64 submission;	/* in: offset in the dma-buf */
	__u64 completion;	/* in: offset in the dma-buf */
	__u32 queue;		/* out: number of both queues */
	__u32 pad;
	__u64 tail;		/* out: offset of the doorbell in the dma-buf of the doorbells */
	__u64 head;		/* out: likewise */
};

enum peerbar_nvme_state {
	PEERBAR_NVME_LIVE = 0,
	PEERBAR_NVME_RESET = 1,		/* nvme has reset the controller: the queues are gone */
	PEERBAR_NVME_REVOKED = 2,	/* memory was revoked, and the queues deleted */
	PEERBAR_NVME_REMOVED = 3,	/* nvme has left the controller */
};

/* Deletes a pair in any state. */
struct peerbar_nvme_delete {
	__u32 queue;
	__u32 pad;
};

/* Asks the controller if it has the queues. EIO if it does not answer. */
struct peerbar_nvme_query {
	__u32 queue;		/* in */
	__u32 state;		/* out: enum peerbar_nvme_state */
};

/*
 * Makes a dma-buf of the page or pages with the doorbells, for dynamic importers that can be
 * notified. It contains all doorbells of the controller, including nvme's. It is revoked when the
 * file is closed, and when nvme leaves the controller.
 */
struct peerbar_nvme_doorbells {
	__s32 fd;		/* out */
	__u32 pad;
};

#define PEERBAR_NVME_ATTACH	_IOWR('P', 0x80, struct peerbar_nvme_attach)
#define PEERBAR_NVME_MAP	_IOWR('P', 0x81, struct peerbar_nvme_map)
#define PEERBAR_NVME_UNMAP	_IOW('P', 0x82, struct peerbar_nvme_unmap)
#define PEERBAR_NVME_CREATE	_IOWR('P', 0x83, struct peerbar_nvme_create)
#define PEERBAR_NVME_DELETE	_IOW('P', 0x84, struct peerbar_nvme_delete)
#define PEERBAR_NVME_QUERY	_IOWR('P', 0x85, struct peerbar_nvme_query)
#define PEERBAR_NVME_DOORBELLS	_IOR('P', 0x86, struct peerbar_nvme_doorbells)

#endif
