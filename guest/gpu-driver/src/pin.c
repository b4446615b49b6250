// SPDX-License-Identifier: GPL-2.0
/* Pinned pages for other drivers: see include/peerbar_gpu_pin.h. */
#include <linux/file.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "gpu.h"
#include "pin.h"

DEFINE_MUTEX(pb_pins_lock);	/* lists and states of pins, lists of mappings */
static LIST_HEAD(pins);

struct pb_pin *pb_pin_find(const struct peerbar_gpu_page_table *table, enum pb_pin_state state)
{
	struct pb_pin *pin;

	list_for_each_entry(pin, &pins, node) {
		if (&pin->table == table)
			return pin->state == state ? pin : NULL;
	}
	return NULL;
}

static void pin_free(struct kref *refs)
{
	struct pb_pin *pin = container_of(refs, struct pb_pin, refs);

	if (pin->buffer)
		pb_buffer_put(pin->buffer);
	kvfree(pin);
}

void pb_pin_put(struct pb_pin *pin)
{
	kref_put(&pin->refs, pin_free);
}

/* ---- getting ---- */

static struct pb_pin *make(struct pb_buffer *buffer, u64 offset, u64 length)
{
	u32 entries = length / PEERBAR_GPU_PAGE_SIZE;
	struct pb_pin *pin = kvzalloc(struct_size(pin, bus_addresses, entries), GFP_KERNEL);
	u32 i;

	if (!pin)
		return NULL;
	kref_init(&pin->refs);
	kref_get(&buffer->refs);
	pin->buffer = buffer;
	pin->offset = offset;
	for (i = 0; i < entries; i++)
		pin->bus_addresses[i] = pb_vram_bus_address(buffer, offset + i * PB_GPU_PAGE);
	pin->table = (struct peerbar_gpu_page_table){
		.version = PEERBAR_GPU_PIN_VERSION,
		.page_size = PEERBAR_GPU_PAGE_SIZE,
		.entries = entries,
		.bus_addresses = pin->bus_addresses,
	};
	return pin;
}

/*
 * Publishes the pin, unless the memory has just been revoked. The table is set first, because the
 * callback may use it immediately.
 */
static int publish(struct pb_file *file, u32 handle, struct pb_pin *pin,
		   struct peerbar_gpu_page_table **table)
{
	int error = 0;

	mutex_lock(&pb_pins_lock);
	/* A buffer that is freed or revoked is first marked, and then its pins are searched. */
	if (READ_ONCE(pin->buffer->revoked) || xa_load(&file->buffers, handle) != pin->buffer) {
		error = -ENODEV;
	} else {
		*table = &pin->table;
		list_add(&pin->node, &pins);
		list_add(&pin->in_buffer, &pin->buffer->vram.pins);
		if (pin->persistent)
			atomic_inc(&pin->buffer->vram.persistent);
	}
	mutex_unlock(&pb_pins_lock);
	return error;
}

static int check_range(const struct pb_buffer *buffer, u64 offset, u64 length)
{
	u64 end;

	if (buffer->space != PEERBAR_GPU_SPACE_VRAM || !length ||
	    !IS_ALIGNED(offset | length, PEERBAR_GPU_PAGE_SIZE))
		return -EINVAL;
	return check_add_overflow(offset, length, &end) || end > buffer->size ? -EINVAL : 0;
}

static int get_from(struct pb_file *file, u32 handle, u64 offset, u64 length,
		    const struct pb_pin *wanted, struct peerbar_gpu_page_table **table)
{
	struct pb_buffer *buffer = pb_file_buffer(file, handle);
	struct pb_pin *pin = NULL;
	int error;

	if (!buffer)
		return -ENOENT;
	error = check_range(buffer, offset, length) ?: pb_vram_show(buffer);
	if (!error) {
		pin = make(buffer, offset, length);
		error = pin ? 0 : -ENOMEM;
	}
	if (!error) {
		pin->persistent = wanted->persistent;
		pin->free_callback = wanted->free_callback;
		pin->data = wanted->data;
		error = publish(file, handle, pin, table);
	}
	if (error && pin)
		pb_pin_put(pin);
	pb_buffer_put(buffer);
	return error;
}

static int get(struct file *gpu, u32 handle, u64 offset, u64 length, const struct pb_pin *wanted,
	       struct peerbar_gpu_page_table **table)
{
	struct pb_file *file = gpu->private_data;
	int error;

	if (gpu->f_op != &pb_file_operations)
		return -EINVAL;
	down_read(&file->gpu->alive);
	error = file->gpu->gone ? -ENODEV : get_from(file, handle, offset, length, wanted, table);
	up_read(&file->gpu->alive);
	return error;
}

int peerbar_gpu_get_pages(struct file *gpu, u32 handle, u64 offset, u64 length,
			  struct peerbar_gpu_page_table **table,
			  void (*free_callback)(void *data), void *data)
{
	const struct pb_pin wanted = { .free_callback = free_callback, .data = data };

	return free_callback ? get(gpu, handle, offset, length, &wanted, table) : -EINVAL;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_get_pages);

int peerbar_gpu_get_pages_persistent(struct file *gpu, u32 handle, u64 offset, u64 length,
				     struct peerbar_gpu_page_table **table)
{
	const struct pb_pin wanted = { .persistent = true };

	return get(gpu, handle, offset, length, &wanted, table);
}
EXPORT_SYMBOL_GPL(peerbar_gpu_get_pages_persistent);

/* ---- putting ---- */

/* Removes a pin of that state and kind from the lists; NULL if there is none. */
static struct pb_pin *take(struct peerbar_gpu_page_table *table, enum pb_pin_state state,
			   bool persistent)
{
	struct pb_pin *pin;

	mutex_lock(&pb_pins_lock);
	pin = pb_pin_find(table, state);
	if (pin && pin->persistent == persistent) {
		list_del(&pin->node);
		list_del_init(&pin->in_buffer);
	} else {
		pin = NULL;
	}
	mutex_unlock(&pb_pins_lock);
	return pin;
}

int peerbar_gpu_put_pages(struct peerbar_gpu_page_table *table)
{
	struct pb_pin *pin = take(table, PB_PIN_HELD, false);

	if (!pin)
		return -EINVAL;
	pb_pin_put(pin);
	return 0;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_put_pages);

int peerbar_gpu_put_pages_persistent(struct peerbar_gpu_page_table *table)
{
	struct pb_pin *pin = take(table, PB_PIN_HELD, true);

	if (!pin)
		return -EINVAL;
	if (atomic_dec_and_test(&pin->buffer->vram.persistent))
		wake_up_all(&pin->buffer->idle);
	pb_pin_put(pin);
	return 0;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_put_pages_persistent);

int peerbar_gpu_free_page_table(struct peerbar_gpu_page_table *table)
{
	struct pb_pin *pin = take(table, PB_PIN_GONE, false);

	if (!pin)
		return -EINVAL;
	pb_pin_put(pin);
	return 0;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_free_page_table);

/* ---- revocation ---- */

/* Returns the next pin of the buffer to notify, marked and with a reference, or NULL. */
static struct pb_pin *next_to_notify(struct pb_buffer *buffer)
{
	struct pb_pin *pin;

	mutex_lock(&pb_pins_lock);
	list_for_each_entry(pin, &buffer->vram.pins, in_buffer) {
		if (!pin->persistent) {
			pin->state = PB_PIN_GONE;
			list_del_init(&pin->in_buffer);
			kref_get(&pin->refs);
			mutex_unlock(&pb_pins_lock);
			return pin;
		}
	}
	mutex_unlock(&pb_pins_lock);
	return NULL;
}

/*
 * The memory is revoked: every holder with a callback is notified, and has released the memory on
 * return.
 */
void pb_pins_revoke(struct pb_buffer *buffer)
{
	struct pb_pin *pin;

	while ((pin = next_to_notify(buffer))) {
		pin->free_callback(pin->data);
		/* The holder may keep the table, but not the memory. */
		pin->buffer = NULL;
		pb_buffer_put(buffer);
		pb_pin_put(pin);
	}
}
