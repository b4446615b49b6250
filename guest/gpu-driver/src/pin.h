/* SPDX-License-Identifier: GPL-2.0 */
/* Structures that pin.c and pin_map.c share. */
#ifndef PEERBAR_GPU_PIN_STATE_H
#define PEERBAR_GPU_PIN_STATE_H

#include <linux/list.h>
#include <linux/mutex.h>

#include <peerbar_gpu_pin.h>

struct pb_buffer;

enum pb_pin_state {
	PB_PIN_HELD,
	PB_PIN_GONE,	/* the callback was called or is being called */
};

struct pb_pin {
	struct peerbar_gpu_page_table table;
	struct kref refs;
	struct list_head node;		/* of all pins */
	struct list_head in_buffer;
	struct pb_buffer *buffer;	/* a reference, until the callback has returned */
	u64 offset;			/* in the buffer */
	enum pb_pin_state state;
	bool persistent;
	void (*free_callback)(void *data);
	void *data;
	u64 bus_addresses[];
};

/* Pins, their states and their mappings. */
extern struct mutex pb_pins_lock;

/* With the lock held. A stale pointer is only compared, never dereferenced. */
struct pb_pin *pb_pin_find(const struct peerbar_gpu_page_table *table, enum pb_pin_state state);
void pb_pin_put(struct pb_pin *pin);

#endif
