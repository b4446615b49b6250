/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/* The interface of /dev/peerbar-gpuN for programs. */
#ifndef PEERBAR_GPU_H
#define PEERBAR_GPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The space of a buffer or an address. */
enum peerbar_gpu_space {
	PEERBAR_GPU_SPACE_VRAM = 0,	/* handle of a VRAM buffer, offset in it */
	PEERBAR_GPU_SPACE_HOST = 1,	/* handle of registered memory, offset in it */
	PEERBAR_GPU_SPACE_DMABUF = 2,	/* handle of an imported dma-buf, offset in it */
};

struct peerbar_gpu_info {
	__u64 vram_size;
	__u64 aperture_size;
	__u64 p2pmem_size;	/* published as p2pmem; 0 in window mode */
	__u32 channels;		/* for files; a user without CAP_SYS_RESOURCE has seven at most */
	__u32 features;		/* bit 0: window aperture */
	__u32 domain, bus, devfn; /* PCI address */
	__u32 pad;
};

/*
 * Pages that follow each other in the buffer do not do so in VRAM, as in a memory that has been in
 * use for long. Without it a buffer is contiguous. Needs free memory of twice the size for a
 * moment; EOPNOTSUPP in window mode.
 */
#define PEERBAR_GPU_ALLOC_SCATTERED	1

/*
 * Allocates VRAM, whole pages, all zeros: the GPU clears them first. Memory that it cannot clear is
 * not allocated (EIO). mmap the file at mmap_offset, MAP_SHARED. A child does not inherit the
 * mapping across fork(): it maps the file again.
 */
struct peerbar_gpu_alloc {
	__u64 size;		/* in: bytes; out: rounded up to pages */
	__u32 flags;		/* PEERBAR_GPU_ALLOC_... */
	__u32 handle;		/* out */
	__u64 mmap_offset;	/* out */
};

struct peerbar_gpu_free {
	__u32 handle;
	__u32 pad;
};

/* One contiguous piece of a buffer. */
struct peerbar_gpu_query {
	__u32 handle;
	__u32 space;		/* out: enum peerbar_gpu_space */
	__u64 offset;		/* in: offset in the buffer */
	__u64 vram_offset;	/* out: 0 if it is not in VRAM */
	__u64 bus_address;	/* out: of that byte in BAR2; 0 if it is not in VRAM */
	__u64 length;		/* out: number of bytes that follow at consecutive addresses */
};

/* Makes host memory reachable for the GPU. Unregistering is PEERBAR_GPU_FREE. */
struct peerbar_gpu_register {
	__u64 address;		/* in: user address, page aligned */
	__u64 size;		/* in: bytes, whole pages */
	__u32 handle;		/* out */
	__u32 pad;
};

struct peerbar_gpu_operand {
	__u32 space;		/* enum peerbar_gpu_space */
	__u32 handle;
	__u64 offset;		/* in the buffer; or the plain number if the command expects one */
};

/*
 * Puts one command on the file's channel. A command that is too long or too scattered for the
 * device is split if the results of parts add up to that of the whole; otherwise EOPNOTSUPP.
 */
struct peerbar_gpu_submit {
	__u32 opcode;		/* as defined by the device */
	__u32 kernel;
	struct peerbar_gpu_operand operand[13];
	__u32 address_mask;	/* bit i: operand i is an address, otherwise a number */
	__u32 pad;
	__u64 length[13];	/* bytes of operand i; checked against its buffer */
	__u64 fence;		/* out: wait for it */
};

/*
 * An error of the driver, not a fault code: a reset of the GPU came while the command may have been
 * in progress, and the command cannot be repeated. The effects until then remain.
 */
#define PEERBAR_GPU_ERROR_RESET	0x100

/*
 * The same for an imported dma-buf: its exporter has taken the memory away, and commands that use
 * it had not completed within 10 s. These fail, and with them a command of the same file that was
 * in progress then and cannot be repeated. Their effects until then remain.
 */
#define PEERBAR_GPU_ERROR_REVOKED	0x101

/*
 * ETIMEDOUT when the time is over, ENODEV if the GPU is gone, EIO if the channel does not stop
 * after an error: then its commands never end.
 */
struct peerbar_gpu_wait {
	__u64 fence;
	__u64 timeout_ns;
	__u64 result;		/* out: the command's result */
	__u32 error;		/* out: 0, the device's fault code, or PEERBAR_GPU_ERROR_... */
	__u32 pad;
};

/* An eventfd that counts completed commands of this file; -1 removes it. */
struct peerbar_gpu_eventfd {
	__s32 fd;
	__u32 pad;
};

/*
 * The guarantees of a dma-buf to its importers, which determine the drivers that may attach. Others
 * are refused with EOPNOTSUPP, and so are a dynamic importer that does not accept peer memory, and
 * a device that is not a PCI function. If the kernel has no route for peer-to-peer DMA between the
 * two devices, mapping fails with EINVAL (EREMOTEIO in older kernels).
 */
enum peerbar_gpu_export_policy {
	/*
	 * Revoked at any time. For dynamic importers that can be notified: those that map again,
	 * and those that pin and stop their hardware when they are notified. A kernel without
	 * dma_buf_attach_revocable() cannot distinguish the latter from those that must not be
	 * notified while they pin, so there a pin is refused with EOPNOTSUPP.
	 */
	PEERBAR_GPU_EXPORT_REVOCABLE = 0,
	/*
	 * Not revoked while an importer that cannot be notified has mapped it, or any importer has
	 * pinned it. For all dynamic importers.
	 */
	PEERBAR_GPU_EXPORT_PINNED = 1,
	/*
	 * As PINNED, and also for importers that attach statically. These cannot state that they
	 * accept memory of a peer: the exporting program guarantees that the importer uses only DMA
	 * addresses.
	 */
	PEERBAR_GPU_EXPORT_STATIC = 2,
};

/*
 * Makes a dma-buf, which keeps the memory when the buffer is freed. It can be mapped like the file:
 * MAP_SHARED, and not across fork(). A mapping does not prevent a revocation; then accesses raise
 * SIGBUS, and a new mapping is refused with ENODEV. EINVAL for an unknown policy; EOPNOTSUPP for a
 * policy other than REVOCABLE if the aperture is a window: after a reset the driver must write the
 * window's table again, and an importer that cannot be notified would reach no memory until then.
 */
struct peerbar_gpu_export {
	__u32 handle;
	__u32 policy;		/* enum peerbar_gpu_export_policy */
	__s32 fd;		/* out: dma-buf */
	__u32 pad;		/* 0 */
};

struct peerbar_gpu_import {
	__s32 fd;		/* in: dma-buf */
	__u32 handle;		/* out */
	__u64 size;		/* out */
};

/*
 * Revokes a buffer from all its holders: mappings fault, dma-buf importers are notified, pins get
 * their callback. ETIMEDOUT: it is revoked, but fences of importers are not signalled within 5 s;
 * the memory is not reused before they are. Once they are, the same request succeeds. EBUSY,
 * without any notification: an importer holds the buffer by a dma-buf that is not revocable.
 */
struct peerbar_gpu_revoke {
	__u32 handle;
	__u32 pad;
};

#define PEERBAR_GPU_INFO	_IOR('P', 0x40, struct peerbar_gpu_info)
#define PEERBAR_GPU_ALLOC	_IOWR('P', 0x41, struct peerbar_gpu_alloc)
#define PEERBAR_GPU_FREE	_IOW('P', 0x42, struct peerbar_gpu_free)
#define PEERBAR_GPU_QUERY	_IOWR('P', 0x43, struct peerbar_gpu_query)
#define PEERBAR_GPU_REGISTER	_IOWR('P', 0x44, struct peerbar_gpu_register)
#define PEERBAR_GPU_SUBMIT	_IOWR('P', 0x45, struct peerbar_gpu_submit)
#define PEERBAR_GPU_WAIT	_IOWR('P', 0x46, struct peerbar_gpu_wait)
#define PEERBAR_GPU_EVENTFD	_IOW('P', 0x47, struct peerbar_gpu_eventfd)
#define PEERBAR_GPU_EXPORT	_IOWR('P', 0x48, struct peerbar_gpu_export)
#define PEERBAR_GPU_IMPORT	_IOWR('P', 0x49, struct peerbar_gpu_import)
#define PEERBAR_GPU_REVOKE	_IOW('P', 0x4a, struct peerbar_gpu_revoke)

#endif
