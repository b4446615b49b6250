/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/peerbar-gpu-import-test: an importer of dma-bufs that executes requests, for any PCI
 * function, so that a test can force each order of events. It releases a dma-buf when the open file
 * that attached it is closed.
 */
#ifndef PEERBAR_GPU_IMPORT_TEST_H
#define PEERBAR_GPU_IMPORT_TEST_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The kind of importer. */
enum peerbar_import_test_kind {
	/* Dynamic; releases pins and the mapping when it is notified. */
	PEERBAR_IMPORT_TEST_NOTIFIED = 0,
	/* Dynamic, and cannot be notified. */
	PEERBAR_IMPORT_TEST_PINNING = 1,
	PEERBAR_IMPORT_TEST_STATIC = 2,
	/* Dynamic, only for memory of the host. */
	PEERBAR_IMPORT_TEST_HOST_ONLY = 3,
};

/* For a device that is not a PCI function. */
#define PEERBAR_IMPORT_TEST_NO_PCI	0xffffffff

/* The answer of the kernel or the exporter is in result: 0 or a negative errno. */
struct peerbar_import_test_attach {
	__s32 fd;		/* in: dma-buf */
	__u32 kind;		/* in: enum peerbar_import_test_kind */
	__u32 domain, bus, devfn; /* in: the importing function; domain may be NO_PCI */
	__u32 id;		/* out */
	__s32 result;		/* out */
	__u32 pad;
};

struct peerbar_import_test_id {
	__u32 id;
	__s32 result;		/* out */
};

struct peerbar_import_test_map {
	__u32 id;
	__s32 result;		/* out */
	__u64 dma_address;	/* out: of the first byte */
	__u64 length;		/* out: number of bytes that follow at consecutive addresses */
};

struct peerbar_import_test_state {
	__u32 id;
	__u32 notified;		/* number of calls of the callback */
	__u32 pins;
	__u32 mapped;		/* 0 or 1 */
};

struct peerbar_import_test_reopen {
	__u32 id;
	__s32 fd;		/* out: one more descriptor of the dma-buf */
};

#define PEERBAR_IMPORT_TEST_ATTACH	_IOWR('P', 0x70, struct peerbar_import_test_attach)
#define PEERBAR_IMPORT_TEST_DETACH	_IOWR('P', 0x71, struct peerbar_import_test_id)
#define PEERBAR_IMPORT_TEST_PIN		_IOWR('P', 0x72, struct peerbar_import_test_id)
#define PEERBAR_IMPORT_TEST_UNPIN	_IOWR('P', 0x73, struct peerbar_import_test_id)
#define PEERBAR_IMPORT_TEST_MAP		_IOWR('P', 0x74, struct peerbar_import_test_map)
#define PEERBAR_IMPORT_TEST_UNMAP	_IOWR('P', 0x75, struct peerbar_import_test_id)
#define PEERBAR_IMPORT_TEST_STATE	_IOWR('P', 0x76, struct peerbar_import_test_state)
#define PEERBAR_IMPORT_TEST_REOPEN	_IOWR('P', 0x77, struct peerbar_import_test_reopen)

#endif
