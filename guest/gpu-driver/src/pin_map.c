// SPDX-License-Identifier: GPL-2.0
/* Addresses of pinned pages for one peer: see include/peerbar_gpu_pin.h. */
#include <linux/slab.h>

#include "gpu.h"
#include "older_kernels.h"
#include "pin.h"

struct pb_pin_mapping {
	struct peerbar_gpu_dma_mapping mapping;
	struct list_head node;
	struct pci_dev *peer;
	struct pb_pin *pin;	/* a reference */
	struct dma_buf_attachment *attachment;	/* of a private dma-buf */
	struct sg_table *sgt;
	u64 dma_addresses[];
};

static LIST_HEAD(mappings);

/* Nothing to do: the callback of its pin notifies the holder. */
static void taken_away(struct dma_buf_attachment *attachment)
{
}

static const struct dma_buf_attach_ops attach_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = taken_away,
};

/* The kernel's p2pdma chooses bus addresses or addresses for the IOMMU, or refuses. */
static int map(struct pb_pin_mapping *mapping, struct pb_pin *pin, struct device *dev)
{
	struct dma_buf *dmabuf = pb_export_make(pin->buffer, PEERBAR_GPU_EXPORT_REVOCABLE);
	int error;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	mapping->attachment = dma_buf_dynamic_attach(dmabuf, dev, &attach_ops, NULL);
	if (IS_ERR(mapping->attachment)) {
		error = PTR_ERR(mapping->attachment);
		goto put;
	}
	mapping->sgt = dma_buf_map_attachment_unlocked(mapping->attachment, DMA_BIDIRECTIONAL);
	if (!IS_ERR(mapping->sgt))
		return 0;
	error = PTR_ERR(mapping->sgt);
	dma_buf_detach(dmabuf, mapping->attachment);
put:
	dma_buf_put(dmabuf);
	return error;
}

static void unmap(struct pb_pin_mapping *mapping)
{
	struct dma_buf *dmabuf = mapping->attachment->dmabuf;

	dma_buf_unmap_attachment_unlocked(mapping->attachment, mapping->sgt, DMA_BIDIRECTIONAL);
	dma_buf_detach(dmabuf, mapping->attachment);
	dma_buf_put(dmabuf);
}

/* The whole buffer is mapped; the pages of the pin start at its offset. */
static void list_addresses(struct pb_pin_mapping *mapping, const struct pb_pin *pin)
{
	struct scatterlist *sg;
	u64 start = 0, at = pin->offset;
	u32 page = 0;
	unsigned int i;

	for_each_sgtable_dma_sg(mapping->sgt, sg, i) {
		for (; at < start + sg_dma_len(sg) && page < pin->table.entries; at += PB_GPU_PAGE)
			mapping->dma_addresses[page++] = sg_dma_address(sg) + (at - start);
		start += sg_dma_len(sg);
	}
}

static struct pb_pin_mapping *make(struct pci_dev *peer, struct pb_pin *pin)
{
	struct pb_pin_mapping *mapping;
	int error;

	mapping = kvzalloc(struct_size(mapping, dma_addresses, pin->table.entries), GFP_KERNEL);
	if (!mapping)
		return ERR_PTR(-ENOMEM);
	error = map(mapping, pin, &peer->dev);
	if (error) {
		kvfree(mapping);
		return ERR_PTR(error);
	}
	list_addresses(mapping, pin);
	mapping->mapping = (struct peerbar_gpu_dma_mapping){
		.version = PEERBAR_GPU_PIN_VERSION,
		.page_size = PEERBAR_GPU_PAGE_SIZE,
		.entries = pin->table.entries,
		.dma_addresses = mapping->dma_addresses,
	};
	mapping->peer = pci_dev_get(peer);
	mapping->pin = pin;
	kref_get(&pin->refs);
	return mapping;
}

int peerbar_gpu_dma_map_pages(struct pci_dev *peer, struct peerbar_gpu_page_table *table,
			      struct peerbar_gpu_dma_mapping **mapping)
{
	struct pb_pin_mapping *made = ERR_PTR(-EINVAL);
	struct pb_pin *pin;

	mutex_lock(&pb_pins_lock);
	pin = pb_pin_find(table, PB_PIN_HELD);
	if (pin)
		made = make(peer, pin);
	if (!IS_ERR(made)) {
		list_add(&made->node, &mappings);
		*mapping = &made->mapping;
	}
	mutex_unlock(&pb_pins_lock);
	return PTR_ERR_OR_ZERO(made);
}
EXPORT_SYMBOL_GPL(peerbar_gpu_dma_map_pages);

/* Removes the mapping of a pin of that state from the list; NULL if there is none. */
static struct pb_pin_mapping *take(struct peerbar_gpu_dma_mapping *mapping, enum pb_pin_state state)
{
	struct pb_pin_mapping *found;

	list_for_each_entry(found, &mappings, node) {
		if (&found->mapping == mapping) {
			if (found->pin->state != state)
				return NULL;
			list_del(&found->node);
			return found;
		}
	}
	return NULL;
}

static void destroy(struct pb_pin_mapping *mapping)
{
	unmap(mapping);
	pci_dev_put(mapping->peer);
	pb_pin_put(mapping->pin);
	kvfree(mapping);
}

int peerbar_gpu_dma_unmap_pages(struct pci_dev *peer, struct peerbar_gpu_page_table *table,
				struct peerbar_gpu_dma_mapping *mapping)
{
	struct pb_pin_mapping *found;

	mutex_lock(&pb_pins_lock);
	found = take(mapping, PB_PIN_HELD);
	if (found && (found->peer != peer || &found->pin->table != table)) {
		list_add(&found->node, &mappings);
		found = NULL;
	}
	mutex_unlock(&pb_pins_lock);
	if (!found)
		return -EINVAL;
	destroy(found);
	return 0;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_dma_unmap_pages);

int peerbar_gpu_free_dma_mapping(struct peerbar_gpu_dma_mapping *mapping)
{
	struct pb_pin_mapping *found;

	mutex_lock(&pb_pins_lock);
	found = take(mapping, PB_PIN_GONE);
	mutex_unlock(&pb_pins_lock);
	if (!found)
		return -EINVAL;
	destroy(found);
	return 0;
}
EXPORT_SYMBOL_GPL(peerbar_gpu_free_dma_mapping);
