/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The module's structures, and the functions that its files share.
 *
 * Locks, outer before inner:
 *   device_lock of the controller > nq_disk.lock > nq_disks_lock
 *   device_lock of the controller > nq_disk.lock > nq_pairs_lock
 *   device_lock of the controller > nq_disk.lock > dma_resv > nq_pairs.lock
 * where dma_resv is that of a mapped dma-buf, or of the doorbells. The holder of nq_disks_lock,
 * which the unbind of every PCI device takes, never waits, nor does the holder of nq_pairs_lock.
 * The holder of the lock of a controller's pairs waits for admin commands of that controller.
 */
#ifndef PEERBAR_NVME_QUEUES_DISK_H
#define PEERBAR_NVME_QUEUES_DISK_H

#include <linux/dma-buf.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/xarray.h>

#include <peerbar_nvme_queues.h>

struct nvme_ctrl;
struct nq_doorbells;
struct nq_pairs;

/* An open file. */
struct nq_disk {
	struct kref refs;		/* the file's, and that of an unbind in progress */
	struct mutex lock;		/* everything below, unless noted otherwise */
	struct file *file;		/* of /dev/nvmeN, keeps ctrl; NULL before the attach */
	struct nvme_ctrl *ctrl;
	struct pci_dev *pdev;
	struct nq_pairs *pairs;		/* of all files with ctrl */
	u32 granted;			/* I/O queue pairs */
	bool removed;			/* nvme has left it, or the file is closed */
	struct xarray memories;
	struct nq_doorbells *doorbells;	/* NULL until requested */
	struct list_head node;		/* in nq_disks, under nq_disks_lock */
};

/* A dma-buf that is mapped for the controller. */
struct nq_memory {
	struct nq_disk *disk;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attachment;
	struct sg_table *sgt;		/* under the dma_resv; NULL once it is revoked */
	bool unwanted;			/* is released with the last pair of the file */
};

/* attach.c */
struct nq_disk *nq_disk_new(void);
int nq_state_error(struct nvme_ctrl *ctrl);
int nq_attach(struct nq_disk *disk, struct peerbar_nvme_attach *attach);
void nq_detach(struct nq_disk *disk);
int nq_attach_init(void);
void nq_attach_exit(void);

/* memory.c */
int nq_memory_map(struct nq_disk *disk, struct peerbar_nvme_map *map);
int nq_memory_unmap(struct nq_disk *disk, u32 id);
void nq_memories_clear(struct nq_disk *disk);
void nq_memories_revoke(struct nq_disk *disk);
void nq_memories_free(struct nq_disk *disk);

/* queues.c */
struct nq_pairs *nq_pairs_of(struct nvme_ctrl *ctrl);
void nq_pairs_put(struct nq_pairs *pairs);
u32 nq_linux_queues(const struct nvme_ctrl *ctrl);
int nq_create(struct nq_disk *disk, struct peerbar_nvme_create *create);
int nq_delete(struct nq_disk *disk, u32 queue);
int nq_query(struct nq_disk *disk, struct peerbar_nvme_query *query);
bool nq_has_pairs(struct nq_disk *disk);
void nq_pairs_end(struct nq_disk *disk, enum peerbar_nvme_state state);
void nq_pairs_free(struct nq_disk *disk);

/* doorbells.c */
u64 nq_doorbell(const struct nq_disk *disk, u32 queue, bool head);
int nq_doorbells_export(struct nq_disk *disk);
void nq_doorbells_revoke(struct nq_disk *disk);
void nq_doorbells_free(struct nq_disk *disk);

#endif
