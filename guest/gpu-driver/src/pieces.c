// SPDX-License-Identifier: GPL-2.0
/* Buffers as lists of pieces that are contiguous for the GPU. */
#include <linux/slab.h>

#include "gpu.h"

/* Lists the pieces of memory that is mapped for the GPU; adjacent ones are merged. */
int pb_pieces_of(struct pb_buffer *buffer, struct sg_table *sgt)
{
	struct pb_piece *pieces, *last = NULL;
	struct scatterlist *sg;
	u64 offset = 0;
	unsigned int i;

	pieces = kvmalloc_array(sgt->nents, sizeof(*pieces), GFP_KERNEL_ACCOUNT);
	if (!pieces)
		return -ENOMEM;
	for_each_sgtable_dma_sg(sgt, sg, i) {
		u64 length = min_t(u64, sg_dma_len(sg), buffer->size - offset);

		if (!length)
			break;
		if (last && last->address + last->length == sg_dma_address(sg)) {
			last->length += length;
		} else {
			last = last ? last + 1 : pieces;
			*last = (struct pb_piece){ offset, sg_dma_address(sg), length };
		}
		offset += length;
	}
	if (!last || offset < buffer->size) {
		kvfree(pieces);
		return -EINVAL;
	}
	buffer->pieces = pieces;
	buffer->npieces = last - pieces + 1;
	return 0;
}

void pb_pieces_clear(struct pb_buffer *buffer)
{
	kvfree(buffer->pieces);
	buffer->pieces = NULL;
	buffer->npieces = 0;
}

/*
 * Sets the address of a byte; returns the number of bytes from there on at consecutive addresses.
 */
u64 pb_piece_at(const struct pb_buffer *buffer, u64 offset, u64 *address)
{
	unsigned int low = 0, high = buffer->npieces;
	const struct pb_piece *piece;

	*address = 0;
	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		piece = &buffer->pieces[middle];
		if (offset < piece->offset) {
			high = middle;
		} else if (offset - piece->offset >= piece->length) {
			low = middle + 1;
		} else {
			*address = piece->address + (offset - piece->offset);
			return piece->length - (offset - piece->offset);
		}
	}
	return 0;
}
