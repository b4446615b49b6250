/* SPDX-License-Identifier: GPL-2.0 */
/* The test holder's pins. */
#ifndef PEERBAR_GPU_PIN_TEST_STATE_H
#define PEERBAR_GPU_PIN_TEST_STATE_H

#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include <peerbar_gpu_pin.h>
#include <peerbar_gpu_pin_test.h>

struct held {
	u32 flags;
	struct peerbar_gpu_page_table *table;	/* kept after it was freed, for another request */
	struct peerbar_gpu_dma_mapping *mapping;
	struct pci_dev *peer;
	struct mutex lock;			/* state and gone, against new transfers */
	struct peerbar_pin_test_state state;
	bool gone;				/* table and pages are not to be touched */
	struct completion returned;		/* from the callback */
	struct completion released;
	spinlock_t io_lock;			/* in_flight */
	u32 in_flight;				/* transfers */
	wait_queue_head_t drained;
};

int held_io(struct held *held, const struct peerbar_pin_test_io *io);
void held_drain(struct held *held);

#endif
