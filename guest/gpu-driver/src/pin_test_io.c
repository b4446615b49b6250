// SPDX-License-Identifier: GPL-2.0
/*
 * Transfers between a disk and pinned pages. They hold no reference to the pages: only the pin
 * keeps them.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/file.h>
#include <linux/memremap.h>
#include <linux/slab.h>

#include "pin_test.h"

#define LENGTH_MAX SZ_1M
#define UNIT 4096

struct transfer {
	struct held *held;
	struct file *disk;
};

static void transfer_end(struct bio *bio)
{
	struct transfer *transfer = bio->bi_private;
	struct held *held = transfer->held;
	int error = blk_status_to_errno(bio->bi_status);
	unsigned long flags;

	bio_put(bio);
	fput(transfer->disk);
	kfree(transfer);
	if (error)
		WRITE_ONCE(held->state.error, error);
	/* The waiter may free the pin as soon as the lock is released. */
	spin_lock_irqsave(&held->io_lock, flags);
	held->in_flight--;
	wake_up_all(&held->drained);
	spin_unlock_irqrestore(&held->io_lock, flags);
}

/* In peerbar's guests a bus address equals the CPU's physical address. */
static struct page *page_at(const struct held *held, u64 offset)
{
	u32 size = held->table->page_size;
	u64 address = held->table->bus_addresses[offset / size] + offset % size;
	struct page *page;

	if (!pfn_valid(PHYS_PFN(address)))
		return NULL;
	page = pfn_to_page(PHYS_PFN(address));
	return is_pci_p2pdma_page(page) ? page : NULL;
}

static int fill_bio(struct bio *bio, const struct held *held, u64 offset, u64 length)
{
	u64 at;

	for (at = offset; at < offset + length; at += PAGE_SIZE) {
		struct page *page = page_at(held, at);

		if (!page)
			return -ENODEV;
		if (bio_add_page(bio, page, PAGE_SIZE, 0) != PAGE_SIZE)
			return -EIO;
	}
	return 0;
}

static int check(const struct held *held, const struct peerbar_pin_test_io *io)
{
	u64 size = (u64)held->table->entries * held->table->page_size;

	if (!io->length || io->length > LENGTH_MAX ||
	    (io->disk_offset | io->offset | io->length) % UNIT)
		return -EINVAL;
	return io->offset > size || io->length > size - io->offset ? -ERANGE : 0;
}

/* With the pin locked and not revoked. Takes over the reference to the disk if it succeeds. */
static int start(struct held *held, const struct peerbar_pin_test_io *io, struct file *disk)
{
	struct block_device *bdev = I_BDEV(disk->f_mapping->host);
	struct transfer *transfer = kmalloc(sizeof(*transfer), GFP_KERNEL);
	struct bio *bio;
	int error;

	if (!transfer)
		return -ENOMEM;
	bio = bio_alloc(bdev, io->length / PAGE_SIZE, io->write ? REQ_OP_WRITE : REQ_OP_READ,
			GFP_KERNEL);
	bio->bi_iter.bi_sector = io->disk_offset >> SECTOR_SHIFT;
	error = fill_bio(bio, held, io->offset, io->length);
	if (error) {
		bio_put(bio);
		kfree(transfer);
		return error;
	}
	*transfer = (struct transfer){ held, disk };
	bio->bi_private = transfer;
	bio->bi_end_io = transfer_end;
	spin_lock_irq(&held->io_lock);
	held->in_flight++;
	spin_unlock_irq(&held->io_lock);
	held->state.started++;
	submit_bio(bio);
	return 0;
}

int held_io(struct held *held, const struct peerbar_pin_test_io *io)
{
	struct file *disk = fget(io->disk);
	int error = -EINVAL;

	if (!disk)
		return -EBADF;
	if (S_ISBLK(file_inode(disk)->i_mode) &&
	    disk->f_mode & (io->write ? FMODE_WRITE : FMODE_READ)) {
		mutex_lock(&held->lock);
		error = held->gone ? -ENODEV : check(held, io) ?: start(held, io, disk);
		mutex_unlock(&held->lock);
	}
	if (error)
		fput(disk);
	return error;
}

void held_drain(struct held *held)
{
	spin_lock_irq(&held->io_lock);
	wait_event_lock_irq(held->drained, !held->in_flight, held->io_lock);
	spin_unlock_irq(&held->io_lock);
}
