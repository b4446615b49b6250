/* SPDX-License-Identifier: GPL-2.0 */
/* Names that have changed since Linux 6.13; Kbuild detects them. */
#ifndef PEERBAR_GPU_OLDER_KERNELS_H
#define PEERBAR_GPU_OLDER_KERNELS_H

#include <linux/dma-buf.h>
#include <linux/memremap.h>
#include <linux/mm.h>

#ifndef PB_HAS_PAGE_PGMAP
static inline struct dev_pagemap *page_pgmap(const struct page *page)
{
	return page->pgmap;
}
#endif

#if defined(PB_HAS_PHYS_VEC_TO_SGT) && !defined(PB_HAS_PHYS_VEC)
#define phys_vec dma_buf_phys_vec
#endif

#ifndef PB_HAS_INVALIDATE_MAPPINGS
#define invalidate_mappings move_notify
#define dma_buf_invalidate_mappings dma_buf_move_notify

static inline bool dma_buf_attach_revocable(struct dma_buf_attachment *attach)
{
	return attach->importer_ops && attach->importer_ops->move_notify;
}
#endif

/*
 * Returns true if an importer with a callback can be notified while it has pinned a dma-buf. On
 * kernels that require a callback of all dynamic importers, those that pin have one that must not
 * be called while they do.
 */
static inline bool pb_pin_is_revocable(void)
{
#ifdef PB_HAS_INVALIDATE_MAPPINGS
	return true;
#else
	return false;
#endif
}

#endif
