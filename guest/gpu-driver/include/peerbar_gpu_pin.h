/* SPDX-License-Identifier: GPL-2.0 */
/*
 * VRAM for other drivers, in the form that GPU vendors provide for storage and network drivers.
 *
 * A holder pins a range of a program's buffer and gets a table of bus addresses. The memory may be
 * revoked: its program frees the buffer, exits, or revokes it, or the GPU is removed. Then the
 * holder's callback is called. Once it returns, the holder's hardware must not use the memory any
 * more, and the holder may only free the table.
 *
 * A persistent pin has no callback. The memory stays until the holder puts it, regardless of the
 * program.
 */
#ifndef PEERBAR_GPU_PIN_H
#define PEERBAR_GPU_PIN_H

#include <linux/types.h>

struct file;
struct pci_dev;

#define PEERBAR_GPU_PAGE_SIZE 65536ULL

/* Both structures grow only at their end, and this number with them. */
#define PEERBAR_GPU_PIN_VERSION 1

/**
 * struct peerbar_gpu_page_table - the addresses of pinned memory
 * @version: PEERBAR_GPU_PIN_VERSION of the driver that made it
 * @page_size: bytes of each page
 * @entries: number of pages
 * @bus_addresses: of each page, on the PCIe fabric; see peerbar_gpu_dma_map_pages() for a device's
 * addresses
 */
struct peerbar_gpu_page_table {
	u32 version;
	u32 page_size;
	u32 entries;
	u64 *bus_addresses;
};

/**
 * struct peerbar_gpu_dma_mapping - the same pages, as addressed by one peer
 * @version: as in the page table
 * @page_size: as in the page table
 * @entries: as in the page table
 * @dma_addresses: of each page
 */
struct peerbar_gpu_dma_mapping {
	u32 version;
	u32 page_size;
	u32 entries;
	u64 *dma_addresses;
};

/**
 * peerbar_gpu_get_pages() - pins a range of a buffer
 * @gpu: the GPU's open file, /dev/peerbar-gpuN
 * @handle: of a VRAM buffer of that file
 * @offset: in the buffer, a multiple of PEERBAR_GPU_PAGE_SIZE
 * @length: a multiple of PEERBAR_GPU_PAGE_SIZE
 * @table: receives the table
 * @free_callback: called once if the memory is revoked before peerbar_gpu_put_pages(); may sleep
 * @data: for the callback
 *
 * Return: 0; -EINVAL for another kind of file, or a range that is not aligned or not in the buffer;
 * -ENOENT if there is no such buffer; -ENODEV if it was revoked; -ENOSPC if a window aperture is
 * full; -ENOMEM.
 */
int peerbar_gpu_get_pages(struct file *gpu, u32 handle, u64 offset, u64 length,
			  struct peerbar_gpu_page_table **table,
			  void (*free_callback)(void *data), void *data);

/**
 * peerbar_gpu_put_pages() - ends a pin
 * @table: from peerbar_gpu_get_pages(); freed
 *
 * Return: 0; -EINVAL, without any effect, if the callback was called or is being called, or if
 * there is no such pin.
 */
int peerbar_gpu_put_pages(struct peerbar_gpu_page_table *table);

/**
 * peerbar_gpu_free_page_table() - frees the table of a pin whose memory was revoked
 * @table: from peerbar_gpu_get_pages()
 *
 * For the callback, or any time after it.
 *
 * Return: 0; -EINVAL, without any effect, if the memory is still pinned, or if there is no such
 * table.
 */
int peerbar_gpu_free_page_table(struct peerbar_gpu_page_table *table);

/**
 * peerbar_gpu_get_pages_persistent() - pins a range of a buffer until it is put
 * @gpu: as for peerbar_gpu_get_pages()
 * @handle: as for peerbar_gpu_get_pages()
 * @offset: as for peerbar_gpu_get_pages()
 * @length: as for peerbar_gpu_get_pages()
 * @table: as for peerbar_gpu_get_pages()
 *
 * The removal of the GPU waits for peerbar_gpu_put_pages_persistent().
 *
 * Return: as for peerbar_gpu_get_pages().
 */
int peerbar_gpu_get_pages_persistent(struct file *gpu, u32 handle, u64 offset, u64 length,
				     struct peerbar_gpu_page_table **table);

/**
 * peerbar_gpu_put_pages_persistent() - ends a persistent pin
 * @table: from peerbar_gpu_get_pages_persistent(); freed
 *
 * Return: 0; -EINVAL, without any effect, if there is no such pin.
 */
int peerbar_gpu_put_pages_persistent(struct peerbar_gpu_page_table *table);

/**
 * peerbar_gpu_dma_map_pages() - returns a peer's addresses of pinned pages
 * @peer: the device that will read and write them
 * @table: of a pin that is not revoked
 * @mapping: receives the mapping
 *
 * Return: 0; -EINVAL if the pages are not pinned, or if the kernel has no route for peer-to-peer
 * DMA between the two devices (-EREMOTEIO in older kernels); -EOPNOTSUPP for a window aperture
 * before Linux 6.19; -ENOMEM.
 */
int peerbar_gpu_dma_map_pages(struct pci_dev *peer, struct peerbar_gpu_page_table *table,
			      struct peerbar_gpu_dma_mapping **mapping);

/**
 * peerbar_gpu_dma_unmap_pages() - ends a mapping, before peerbar_gpu_put_pages()
 * @peer: the peer of the mapping
 * @table: the table of the mapping
 * @mapping: from peerbar_gpu_dma_map_pages(); freed
 *
 * Return: 0; -EINVAL, without any effect, if the memory was revoked or the three do not belong
 * together.
 */
int peerbar_gpu_dma_unmap_pages(struct pci_dev *peer, struct peerbar_gpu_page_table *table,
				struct peerbar_gpu_dma_mapping *mapping);

/**
 * peerbar_gpu_free_dma_mapping() - ends a mapping of revoked memory
 * @mapping: from peerbar_gpu_dma_map_pages(); freed
 *
 * For the callback, before peerbar_gpu_free_page_table().
 *
 * Return: 0; -EINVAL, without any effect, if the memory is still pinned, or if there is no such
 * mapping.
 */
int peerbar_gpu_free_dma_mapping(struct peerbar_gpu_dma_mapping *mapping);

#endif
