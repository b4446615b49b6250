// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of a program that the GPU may reach: ordinary pages, or p2pmem of a peer such as an NVMe
 * controller's CMB.
 */
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/overflow.h>
#include <linux/pci-p2pdma.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "gpu.h"

/* pin_user_pages_fast counts in an int. */
#define PAGES_MAX ((u64)SZ_1G * 16 / PAGE_SIZE)

static void unpin(struct pb_host *host)
{
	if (host->mm) {
		unpin_user_pages_dirty_lock(host->pages, host->npages, true);
		account_locked_vm(host->mm, host->npages, false);
		mmdrop(host->mm);
	} else {
		unpin_user_pages(host->pages, host->npages);
	}
}

static void host_drop(struct pb_buffer *buffer)
{
	struct pb_host *host = &buffer->host;

	dma_unmap_sgtable(&buffer->gpu->pdev->dev, &host->sgt, DMA_BIDIRECTIONAL, 0);
	sg_free_table(&host->sgt);
	unpin(host);
	kvfree(host->pages);
}

static const struct pb_buffer_ops host_ops = {
	.drop = host_drop,
};

/* Pins all pages or none. */
static int pin_all(struct pb_host *host, u64 address, unsigned long npages, unsigned int flags)
{
	host->npages = 0;
	while (host->npages < npages) {
		int pinned = pin_user_pages_fast(address + host->npages * PAGE_SIZE,
						 npages - host->npages, FOLL_WRITE | flags,
						 host->pages + host->npages);

		if (pinned <= 0) {
			unpin_user_pages(host->pages, host->npages);
			return pinned ?: -EFAULT;
		}
		host->npages += pinned;
	}
	return 0;
}

static int pin_ordinary(struct pb_host *host, u64 address, unsigned long npages)
{
	int error = account_locked_vm(current->mm, npages, true);

	if (error)
		return error;
	error = pin_all(host, address, npages, FOLL_LONGTERM);
	if (error) {
		account_locked_vm(current->mm, npages, false);
		return error;
	}
	host->mm = current->mm;
	mmgrab(host->mm);
	return 0;
}

/* Peer memory is never moved, so it needs no long-term pin, and the kernel has none for it. */
static int pin_peer(struct pb_host *host, u64 address, unsigned long npages)
{
	unsigned long i;
	int error = pin_all(host, address, npages, FOLL_PCI_P2PDMA);

	if (error)
		return error;
	for (i = 0; i < npages; i++) {
		if (!is_pci_p2pdma_page(host->pages[i])) {
			unpin(host);
			return -EINVAL;
		}
	}
	return 0;
}

/*
 * Programs use the memory while it is registered, so a bounce buffer would be stale. Not
 * dma_need_sync(), which is true for every mapping in a kernel with CONFIG_DMA_API_DEBUG.
 */
static bool may_bounce(struct device *dev)
{
	return !dev_is_dma_coherent(dev) || dma_max_mapping_size(dev) != SIZE_MAX;
}

static int map(struct pb_buffer *buffer, struct pb_gpu *gpu)
{
	struct pb_host *host = &buffer->host;
	struct device *dev = &gpu->pdev->dev;
	int error;

	if (host->mm && may_bounce(dev))
		return -EOPNOTSUPP;
	error = sg_alloc_table_from_pages(&host->sgt, host->pages, host->npages, 0, buffer->size,
					  GFP_KERNEL_ACCOUNT);
	if (error)
		return error;
	error = dma_map_sgtable(dev, &host->sgt, DMA_BIDIRECTIONAL, 0);
	if (error)
		goto free_table;
	error = pb_pieces_of(buffer, &host->sgt);
	if (!error)
		return 0;
	dma_unmap_sgtable(dev, &host->sgt, DMA_BIDIRECTIONAL, 0);
free_table:
	sg_free_table(&host->sgt);
	return error;
}

static int pin_and_map(struct pb_buffer *buffer, struct pb_gpu *gpu, u64 address)
{
	struct pb_host *host = &buffer->host;
	unsigned long npages = buffer->size >> PAGE_SHIFT;
	int error;

	error = pin_ordinary(host, address, npages);
	if (error == -EREMOTEIO || error == -EFAULT || error == -EOPNOTSUPP)
		error = pin_peer(host, address, npages);
	if (error)
		return error;
	error = map(buffer, gpu);
	if (error)
		unpin(host);
	return error;
}

struct pb_buffer *pb_host_create(struct pb_gpu *gpu, u64 address, u64 size)
{
	struct pb_buffer *buffer;
	u64 end;
	int error = -ENOMEM;

	if (!size || !PAGE_ALIGNED(address | size) || check_add_overflow(address, size, &end))
		return ERR_PTR(-EINVAL);
	if (size >> PAGE_SHIFT > PAGES_MAX)
		return ERR_PTR(-ENOMEM);
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return ERR_PTR(-ENOMEM);
	buffer->size = size;
	buffer->host.pages = kvmalloc_array(size >> PAGE_SHIFT, sizeof(struct page *),
					    GFP_KERNEL_ACCOUNT);
	if (buffer->host.pages)
		error = pin_and_map(buffer, gpu, address);
	if (error) {
		kvfree(buffer->host.pages);
		kfree(buffer);
		return ERR_PTR(error);
	}
	pb_buffer_init(buffer, gpu, &host_ops, PEERBAR_GPU_SPACE_HOST, size);
	return buffer;
}
