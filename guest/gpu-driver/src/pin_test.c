// SPDX-License-Identifier: GPL-2.0
/* A holder of pinned VRAM for tests: see include/peerbar_gpu_pin_test.h. */
#include <linux/file.h>

#include "pin_test.h"
#include "test_device.h"

/* ---- the holder ---- */

static void free_table(struct held *held)
{
	if (held->mapping)
		peerbar_gpu_free_dma_mapping(held->mapping);
	held->mapping = NULL;
	peerbar_gpu_free_page_table(held->table);
}

/* The memory is revoked: once this returns, the test must not touch it any more. */
static void memory_revoked(void *data)
{
	struct held *held = data;

	mutex_lock(&held->lock);
	WRITE_ONCE(held->gone, true);
	held->state.callbacks++;
	held->state.in_callback = 1;
	held->state.in_flight = READ_ONCE(held->in_flight);
	held->state.put_in_callback = peerbar_gpu_put_pages(held->table);
	mutex_unlock(&held->lock);
	if (held->flags & PEERBAR_PIN_TEST_HOLD)
		wait_for_completion(&held->released);
	held_drain(held);
	if (!(held->flags & PEERBAR_PIN_TEST_KEEP_TABLE))
		free_table(held);
	mutex_lock(&held->lock);
	held->state.in_callback = 0;
	mutex_unlock(&held->lock);
	complete_all(&held->returned);
}

static int put(struct held *held)
{
	int error;

	mutex_lock(&held->lock);
	if (held->flags & PEERBAR_PIN_TEST_PERSISTENT)
		error = peerbar_gpu_put_pages_persistent(held->table);
	else
		error = peerbar_gpu_put_pages(held->table);
	if (!error)
		WRITE_ONCE(held->gone, true);
	mutex_unlock(&held->lock);
	return error;
}

static int unmap(struct held *held)
{
	int error = -EINVAL;

	if (held->mapping)
		error = peerbar_gpu_dma_unmap_pages(held->peer, held->table, held->mapping);
	if (!error)
		held->mapping = NULL;
	return error;
}

/* Releases the remains, in any state. */
static void let_go(void *object)
{
	struct held *held = object;

	complete_all(&held->released);
	held_drain(held);
	if (!READ_ONCE(held->gone)) {
		unmap(held);
		put(held);
	}
	/* If it could not be put, the callback has been called. */
	if (READ_ONCE(held->state.callbacks)) {
		wait_for_completion(&held->returned);
		if (held->flags & PEERBAR_PIN_TEST_KEEP_TABLE)
			free_table(held);
	}
	pci_dev_put(held->peer);
	kfree(held);
}

/* ---- requests ---- */

/* The memory may already be revoked, and the table freed. */
static int describe(struct held *held, struct peerbar_pin_test_pin *pin)
{
	int error = -ENODEV;

	mutex_lock(&held->lock);
	if (!held->gone) {
		pin->bus_address = held->table->bus_addresses[0];
		pin->entries = held->table->entries;
		pin->page_size = held->table->page_size;
		error = 0;
	}
	mutex_unlock(&held->lock);
	return error;
}

static int request_pin(struct test_objects *pins, void *argument)
{
	struct peerbar_pin_test_pin *pin = argument;
	struct held *held = kzalloc(sizeof(*held), GFP_KERNEL);
	struct file *gpu = fget(pin->gpu);
	int error;

	if (!held || !gpu) {
		error = held ? -EBADF : -ENOMEM;
		goto free;
	}
	held->flags = pin->flags;
	mutex_init(&held->lock);
	init_completion(&held->returned);
	init_completion(&held->released);
	spin_lock_init(&held->io_lock);
	init_waitqueue_head(&held->drained);
	if (pin->flags & PEERBAR_PIN_TEST_PERSISTENT)
		error = peerbar_gpu_get_pages_persistent(gpu, pin->handle, pin->offset, pin->length,
							 &held->table);
	else
		error = peerbar_gpu_get_pages(gpu, pin->handle, pin->offset, pin->length,
					      &held->table, memory_revoked, held);
	if (error)
		goto free;
	fput(gpu);
	error = describe(held, pin);
	if (!error)
		error = test_objects_add(pins, &pin->id, held);
	if (error)
		let_go(held);
	return error;
free:
	if (gpu)
		fput(gpu);
	kfree(held);
	return error;
}

static int request_put(void *object, void *argument)
{
	struct peerbar_pin_test_id *id = argument;

	id->result = put(object);
	return 0;
}

static int request_free_table(void *object, void *argument)
{
	struct held *held = object;
	struct peerbar_pin_test_id *id = argument;

	id->result = 0;
	if (held->mapping)
		id->result = peerbar_gpu_free_dma_mapping(held->mapping);
	if (!id->result) {
		held->mapping = NULL;
		id->result = peerbar_gpu_free_page_table(held->table);
	}
	return 0;
}

static int request_map(void *object, void *argument)
{
	struct held *held = object;
	struct peerbar_pin_test_map *map = argument;
	struct pci_dev *peer;

	if (held->mapping)
		return -EEXIST;
	peer = pci_get_domain_bus_and_slot(map->domain, map->bus, map->devfn);
	if (!peer)
		return -ENODEV;
	pci_dev_put(held->peer);
	held->peer = peer;
	map->result = peerbar_gpu_dma_map_pages(peer, held->table, &held->mapping);
	if (map->result)
		return 0;
	map->entries = held->mapping->entries;
	map->dma_address = held->mapping->dma_addresses[0];
	return 0;
}

static int request_unmap(void *object, void *argument)
{
	struct peerbar_pin_test_id *id = argument;

	id->result = unmap(object);
	return 0;
}

static int request_io(void *object, void *argument)
{
	return held_io(object, argument);
}

static int request_state(void *object, void *argument)
{
	struct held *held = object;
	struct peerbar_pin_test_state *state = argument;
	u32 id = state->id;

	mutex_lock(&held->lock);
	*state = held->state;
	mutex_unlock(&held->lock);
	state->id = id;
	return 0;
}

static int request_release(void *object, void *argument)
{
	struct held *held = object;

	complete_all(&held->released);
	return 0;
}

static int request_drain(void *object, void *argument)
{
	held_drain(object);
	return 0;
}

static const struct test_request requests[] = {
	{ PEERBAR_PIN_TEST_PUT, request_put },
	{ PEERBAR_PIN_TEST_FREE_TABLE, request_free_table },
	{ PEERBAR_PIN_TEST_MAP, request_map },
	{ PEERBAR_PIN_TEST_UNMAP, request_unmap },
	{ PEERBAR_PIN_TEST_IO, request_io },
	{ PEERBAR_PIN_TEST_STATE, request_state },
	{ PEERBAR_PIN_TEST_RELEASE, request_release },
	{ PEERBAR_PIN_TEST_DRAIN, request_drain },
};

/* Pins stay until the file is closed, so requests may run in parallel. */
static int serve(struct test_objects *pins, unsigned int command, void *argument)
{
	struct held *held;

	if (command == PEERBAR_PIN_TEST_PIN)
		return request_pin(pins, argument);
	held = test_objects_find(pins, argument);
	if (!held)
		return -ENOENT;
	return test_serve(requests, ARRAY_SIZE(requests), command, held, argument);
}

static struct test_device pin_device = {
	.misc.name = "peerbar-gpu-pin-test",
	.serve = serve,
	.let_go = let_go,
};
module_test_device(pin_device);

MODULE_DESCRIPTION("peerbar GPU: a holder of pinned pages, for tests");
MODULE_LICENSE("GPL");
