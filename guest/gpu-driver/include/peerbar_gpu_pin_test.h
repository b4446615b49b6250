/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/peerbar-gpu-pin-test: a holder of pinned VRAM that executes requests, so that a test can
 * force each order of events. Pins belong to the open file and are released when it is closed.
 */
#ifndef PEERBAR_GPU_PIN_TEST_H
#define PEERBAR_GPU_PIN_TEST_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The pin has no callback. */
#define PEERBAR_PIN_TEST_PERSISTENT	0x1
/* The callback does not return before PEERBAR_PIN_TEST_RELEASE. */
#define PEERBAR_PIN_TEST_HOLD		0x2
/* The callback leaves the table, and a mapping, for PEERBAR_PIN_TEST_FREE_TABLE. */
#define PEERBAR_PIN_TEST_KEEP_TABLE	0x4

struct peerbar_pin_test_pin {
	__s32 gpu;		/* in: descriptor of /dev/peerbar-gpuN */
	__u32 handle;		/* in */
	__u64 offset;		/* in */
	__u64 length;		/* in */
	__u32 flags;		/* in */
	__u32 id;		/* out */
	__u64 bus_address;	/* out: of the first page */
	__u32 entries;		/* out */
	__u32 page_size;	/* out */
};

/* Requests about a pin. The driver's answer is in result: 0 or a negative errno. */
struct peerbar_pin_test_id {
	__u32 id;
	__s32 result;		/* out */
};

struct peerbar_pin_test_map {
	__u32 id;
	__s32 result;		/* out */
	__u32 domain, bus, devfn; /* in: the peer */
	__u32 entries;		/* out */
	__u64 dma_address;	/* out: of the first page */
};

/*
 * Starts a transfer between a block device and pinned pages, like a storage driver, and does not
 * wait for it.
 */
struct peerbar_pin_test_io {
	__u32 id;
	__s32 disk;		/* descriptor of a block device, open for this direction */
	__u64 disk_offset;	/* multiples of 4096 */
	__u64 offset;
	__u64 length;		/* at most 1 MiB */
	__u32 write;		/* 0: from the disk into the pages */
	__u32 pad;
};

struct peerbar_pin_test_state {
	__u32 id;
	__u32 callbacks;	/* number of calls */
	__u32 in_callback;	/* 1 if it has been called and has not returned */
	__u32 in_flight;	/* transfers in flight when it was called */
	__u32 started;		/* submitted transfers */
	__s32 error;		/* of the last failed transfer */
	__s32 put_in_callback;	/* result of peerbar_gpu_put_pages() in the callback */
	__u32 pad;
};

#define PEERBAR_PIN_TEST_PIN		_IOWR('P', 0x60, struct peerbar_pin_test_pin)
#define PEERBAR_PIN_TEST_PUT		_IOWR('P', 0x61, struct peerbar_pin_test_id)
#define PEERBAR_PIN_TEST_FREE_TABLE	_IOWR('P', 0x62, struct peerbar_pin_test_id)
#define PEERBAR_PIN_TEST_MAP		_IOWR('P', 0x63, struct peerbar_pin_test_map)
#define PEERBAR_PIN_TEST_UNMAP		_IOWR('P', 0x64, struct peerbar_pin_test_id)
#define PEERBAR_PIN_TEST_IO		_IOWR('P', 0x65, struct peerbar_pin_test_io)
#define PEERBAR_PIN_TEST_STATE		_IOWR('P', 0x66, struct peerbar_pin_test_state)
#define PEERBAR_PIN_TEST_RELEASE	_IOWR('P', 0x67, struct peerbar_pin_test_id)
/* Waits until no transfer of the pin is in flight. */
#define PEERBAR_PIN_TEST_DRAIN		_IOWR('P', 0x68, struct peerbar_pin_test_id)

#endif
