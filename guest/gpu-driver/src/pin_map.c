// SPDX-License-Identifier: GPL-2.0
/* Addresses of pinned pages for one peer: see include/peerbar_gpu_pin.h. */
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include "gpu.h"
#include "pin.h"

struct pb_pin_mapping {
	struct peerbar_gpu_dma_mapping mapping;
	struct list_head node;
	struct pci_dev *peer;
	struct pb_pin *pin;	/* a reference */
	struct sg_table sgt;	/* empty in window mode */
	u64 dma_addresses[];
};

static LIST_HEAD(mappings);

/* The kernel's own p2pdma decides: bus addresses, addresses for the IOMMU, or none. */
static int map_pages(struct pb_pin_mapping *mapping, struct pb_pin *pin)
{
	u64 length = pin->table.entries * PEERBAR_GPU_PAGE_SIZE;
	struct scatterlist *sg;
	unsigned int i;
	u32 page = 0;
	int error;

	if (length > UINT_MAX)
		return -EINVAL;
	error = sg_alloc_table(&mapping->sgt, 1, GFP_KERNEL);
	if (error)
		return error;
	sg_set_page(mapping->sgt.sgl, virt_to_page(pin->buffer->vram.pages + pin->offset), length, 0);
	error = dma_map_sgtable(&mapping->peer->dev, &mapping->sgt, DMA_BIDIRECTIONAL, DMA_ATTR_SKIP_CPU_SYNC);
	if (error) {
		sg_free_table(&mapping->sgt);
		return error;
	}
	for_each_sgtable_dma_sg(&mapping->sgt, sg, i) {
		u64 offset;

		for (offset = 0; offset < sg_dma_len(sg) && page < pin->table.entries;
		     offset += PEERBAR_GPU_PAGE_SIZE)
			mapping->dma_addresses[page++] = sg_dma_address(sg) + offset;
	}
	return 0;
}

/* A window has no pages to map; without an IOMMU in between, the bus address is what a peer needs. */
static int map_window(struct pb_pin_mapping *mapping, struct pb_pin *pin)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&mapping->peer->dev);

	if (pci_p2pdma_distance(pin->buffer->gpu->pdev, &mapping->peer->dev, true) < 0)
		return -EINVAL;
	if (domain && domain->type != IOMMU_DOMAIN_IDENTITY)
		return -EOPNOTSUPP;
	memcpy(mapping->dma_addresses, pin->bus_addresses, pin->table.entries * sizeof(u64));
	return 0;
}

static struct pb_pin_mapping *make(struct pci_dev *peer, struct pb_pin *pin)
{
	struct pb_pin_mapping *mapping;
	int error;

	mapping = kvzalloc(struct_size(mapping, dma_addresses, pin->table.entries), GFP_KERNEL);
	if (!mapping)
		return ERR_PTR(-ENOMEM);
	mapping->mapping = (struct peerbar_gpu_dma_mapping){
		.version = PEERBAR_GPU_PIN_VERSION,
		.page_size = PEERBAR_GPU_PAGE_SIZE,
		.entries = pin->table.entries,
		.dma_addresses = mapping->dma_addresses,
	};
	mapping->peer = peer;
	error = pin->buffer->vram.pages ? map_pages(mapping, pin) : map_window(mapping, pin);
	if (error) {
		kvfree(mapping);
		return ERR_PTR(error);
	}
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

/* Takes the mapping of a pin of that state out of the list; NULL if there is none. */
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
	if (mapping->sgt.sgl) {
		dma_unmap_sgtable(&mapping->peer->dev, &mapping->sgt, DMA_BIDIRECTIONAL, DMA_ATTR_SKIP_CPU_SYNC);
		sg_free_table(&mapping->sgt);
	}
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
