/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The driver's structures, and the functions that its files share.
 *
 * Locks, outer before inner:
 *   pb_gpu.alive > pb_buffer.telling > pb_buffer.lock, pb_vram.exports_lock
 *   pb_gpu.alive > pb_file.lock > dma_resv of an imported dma-buf > pb_channel.lock
 *     > pb_file.results_lock
 *   mmap_lock > pb_buffer.lock
 *   pb_vram.exports_lock > dma_resv of an exported dma-buf > pb_buffer.lock
 * pb_gpu.alive is never taken with mmap_lock held, since ioctls touch user memory with it held.
 */
#ifndef PEERBAR_GPU_GPU_H
#define PEERBAR_GPU_GPU_H

#include <linux/atomic.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/genalloc.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <peerbar_gpu.h>

#include "regs.h"

struct dma_buf;
struct pb_buffer;
struct pb_file;
struct pb_gpu;
struct pb_job;

/* Time limit for fences of other drivers, in jiffies. */
#define PB_FENCE_TIMEOUT (5 * HZ)

/*
 * Time limit of a dma-buf's revocation for commands that use it, in jiffies. Copies in progress
 * should end by themselves, even on a slow host.
 */
#define PB_REVOKE_TIMEOUT (10 * HZ)

/* Maximum number of a file's commands in progress; as many results are remembered. */
#define PB_JOBS_MAX 1024

/* ---- buffers ---- */

/* Bytes at consecutive addresses, as seen by the GPU. */
struct pb_piece {
	u64 offset;	/* in the buffer */
	u64 address;	/* offset in VRAM, or bus address or IOVA */
	u64 length;
};

struct pb_buffer_ops {
	/*
	 * Makes sure that the GPU may use the buffer, and raises busy. NULL if it always may.
	 * -EDEADLK if that needs a lock that is held, and must not wait.
	 */
	int (*begin)(struct pb_buffer *buffer, bool wait);
	/* Notifies all holders. NULL if there are none. */
	void (*revoke)(struct pb_buffer *buffer);
	/* Releases the memory; called once. */
	void (*drop)(struct pb_buffer *buffer);
};

/* Memory in the aperture of the GPU. */
struct pb_vram {
	u64 mmap_offset;	/* in the GPU's file */
	u64 window;		/* in BAR 2, PB_NOT_SHOWN if it has no range in the window */
	bool hidden;		/* its range in the window is cleared, for good */
	void *pages;		/* the kernel's address of all VRAM, NULL in window mode */
	struct mutex exports_lock;
	struct list_head exports;
	atomic_t mapped;	/* mappings of importers */
	atomic_t draining;	/* revoked exports whose importers may still use the memory */
	struct list_head pins;	/* under pin.c's lock */
	atomic_t persistent;	/* number of pins without a callback */
};

#define PB_NOT_SHOWN U64_MAX

/* Memory of a program. */
struct pb_host {
	struct page **pages;
	unsigned long npages;
	struct sg_table sgt;
	struct mm_struct *mm;	/* whose locked memory counts the pages, NULL for a peer's memory */
};

/* Memory behind a dma-buf of another exporter. */
struct pb_import {
	struct dma_buf_attachment *attachment;
	struct sg_table *sgt;	/* NULL while not mapped; under the dma-buf's dma_resv */
};

struct pb_buffer {
	struct kref refs;
	struct pb_gpu *gpu;
	const struct pb_buffer_ops *ops;
	struct list_head node;		/* in pb_gpu.buffers */
	struct work_struct release;
	u32 space;			/* enum peerbar_gpu_space */
	u64 size;
	struct mutex lock;		/* revoked against new mappings and pins */
	bool revoked;
	unsigned int pinned;		/* by importers of dma-bufs that are not revocable */
	struct mutex telling;		/* held while a revoke notifies the holders */
	unsigned long dropped;		/* bit 0 */
	atomic_t busy;			/* commands in progress that use it */
	wait_queue_head_t idle;		/* busy or a holder's count has gone down */
	struct pb_piece *pieces;
	unsigned int npieces;
	union {
		struct pb_vram vram;
		struct pb_host host;
		struct pb_import import;
	};
};

/* ---- channels ---- */

#define PB_RING_ENTRIES 512
#define PB_CHANNELS_OF_A_USER 7	/* of one without CAP_SYS_RESOURCE */

struct pb_slot {
	struct pb_job *job;
	u64 units;
	u64 value;	/* the fence's */
	bool last;	/* of its job */
};

struct pb_channel {
	struct pb_gpu *gpu;
	unsigned int index;
	struct mutex lock;	/* all below, and the registers */
	struct pb_file *owner;
	kuid_t user;	/* user of the first job of its last owner, under channels_lock */
	bool paused;	/* takes jobs, but does not run them */
	bool broken;	/* did not stop: its memory is never released */
	struct pb_command *ring;
	dma_addr_t ring_address;
	struct pb_fence *fences;
	dma_addr_t fences_address;
	struct pb_slot *slots;
	u32 head;	/* completed entries since the enable */
	u32 tail;	/* entries put */
	u64 next_value;
	struct list_head jobs;
};

/* ---- device and files ---- */

struct pb_gpu {
	struct kref refs;
	struct pci_dev *pdev;
	struct miscdevice misc;
	int number;
	void __iomem *regs;
	u64 vram_size;
	u64 aperture_size;
	bool window;
	struct rw_semaphore alive;	/* read: an ioctl; write: a reset, the end */
	bool gone;			/* takes no more requests */
	bool removed;			/* its channels are closed, or about to be */
	struct inode *inode;		/* whose address_space contains all mappings */
	struct mutex buffers_lock;
	struct list_head buffers;
	atomic_t holding;		/* buffers that have not released their memory */
	wait_queue_head_t left;
	wait_queue_head_t going;	/* gone has become true */
	struct delayed_work watch;
	struct mutex window_lock;	/* the two registers of the window */
	atomic64_t next_mmap_offset;	/* of scattered buffers; they are never reused */
	struct gen_pool *vram_pool;	/* window mode only */
	struct gen_pool *window_pool;	/* window mode only */
	struct mutex channels_lock;	/* guards their owners */
	struct pb_channel channels[PB_CHANNELS];
	struct pb_file *clearing;	/* the driver's own */
};

struct pb_result {
	u64 result;
	u32 error;
};

struct pb_file {
	struct pb_gpu *gpu;
	struct mutex lock;		/* order of submits, the channel */
	struct xarray buffers;
	u32 next_handle;		/* a handle is reused only after all others */
	struct pb_channel *channel;	/* NULL before the first submit */
	bool broken;			/* commands in progress on the channel do not end */
	u64 submitted;
	spinlock_t results_lock;	/* from here to eventfd */
	u64 completed;
	u64 seen;			/* the newest fence that was waited for */
	struct pb_result *results;	/* by fence modulo PB_JOBS_MAX */
	struct eventfd_ctx *eventfd;
	wait_queue_head_t wait;
};

/* pci.c */
extern struct workqueue_struct *pb_releases;
void pb_gpu_put(struct pb_gpu *gpu);

/* inode.c */
struct inode *pb_inode_new(void);
void pb_inode_free(struct inode *inode);

/* file.c */
extern const struct file_operations pb_file_operations;
struct pb_file *pb_file_new(struct pb_gpu *gpu);
void pb_file_end(struct pb_file *file);
struct pb_buffer *pb_file_buffer(struct pb_file *file, u32 handle);
int pb_file_add(struct pb_file *file, struct pb_buffer *buffer, u32 *handle);
int pb_file_submit(struct pb_file *file, struct peerbar_gpu_submit *request);

/* wait.c */
void pb_file_completed(struct pb_file *file, u64 result, u32 error);
void pb_file_broken(struct pb_file *file);
int pb_file_wait(struct pb_file *file, struct peerbar_gpu_wait *wait);
int pb_file_eventfd(struct pb_file *file, int fd);
__poll_t pb_file_poll(struct file *filp, struct poll_table_struct *table);

/* buffer.c */
void pb_buffer_init(struct pb_buffer *buffer, struct pb_gpu *gpu,
		    const struct pb_buffer_ops *ops, u32 space, u64 size);
void pb_buffer_put(struct pb_buffer *buffer);
void pb_buffer_put_later(struct pb_buffer *buffer);
int pb_buffer_begin(struct pb_buffer *buffer, bool wait);
void pb_buffer_end(struct pb_buffer *buffer);
int pb_buffer_pin(struct pb_buffer *buffer);
void pb_buffer_unpin(struct pb_buffer *buffer);
int pb_buffer_revoke(struct pb_buffer *buffer);
void pb_buffers_leave(struct pb_gpu *gpu);

/* pieces.c */
int pb_pieces_of(struct pb_buffer *buffer, struct sg_table *sgt);
void pb_pieces_clear(struct pb_buffer *buffer);
u64 pb_piece_at(const struct pb_buffer *buffer, u64 offset, u64 *address);

/* vram.c */
struct pb_buffer *pb_vram_create(struct pb_gpu *gpu, u64 size, bool scattered);
int pb_vram_show(struct pb_buffer *buffer);
u64 pb_vram_in_aperture(const struct pb_buffer *buffer, u64 address);
u64 pb_vram_bus_address(const struct pb_buffer *buffer, u64 offset);
int pb_vram_mmap(struct pb_buffer *buffer, struct vm_area_struct *vma);

/* clear.c */
int pb_clear_init(struct pb_gpu *gpu);
void pb_clear_exit(struct pb_gpu *gpu);
int pb_clear(struct pb_buffer *buffer);

/* window.c */
int pb_window_init(struct pb_gpu *gpu);
void pb_window_exit(struct pb_gpu *gpu);
int pb_window_alloc_vram(struct pb_gpu *gpu, u64 size, u64 *offset);
void pb_window_free_vram(struct pb_gpu *gpu, u64 offset, u64 size);
int pb_window_map(struct pb_gpu *gpu, u64 vram, u64 size, u64 *aperture);
void pb_window_clear(struct pb_gpu *gpu, u64 aperture, u64 size);
void pb_window_free(struct pb_gpu *gpu, u64 aperture, u64 size);
void pb_window_restore(struct pb_gpu *gpu);

/* host.c */
struct pb_buffer *pb_host_create(struct pb_gpu *gpu, u64 address, u64 size);

/* import.c */
struct pb_buffer *pb_import_create(struct pb_gpu *gpu, int fd);

/* export.c */
struct dma_buf *pb_export_make(struct pb_buffer *buffer, u32 policy);
int pb_export(struct pb_buffer *buffer, u32 policy);
void pb_exports_revoke(struct pb_buffer *buffer);

/* pin.c */
void pb_pins_revoke(struct pb_buffer *buffer);

/* channel.c */
void pb_channel_init(struct pb_gpu *gpu, unsigned int index);
struct pb_channel *pb_channel_open(struct pb_gpu *gpu, struct pb_file *owner);
void pb_channel_close(struct pb_channel *channel);
void pb_channel_queue(struct pb_channel *channel, struct pb_job *job);
bool pb_channel_progress(struct pb_channel *channel);
void pb_channel_disable(struct pb_channel *channel);
void pb_channel_pause(struct pb_channel *channel);
void pb_channel_resume(struct pb_channel *channel);
void pb_channel_take_back(struct pb_channel *channel, const struct dma_buf *dmabuf);
void pb_channel_wake_owner(struct pb_channel *channel);

/* Splits a program's command into commands of the device. */
struct pb_operation;

struct pb_job {
	struct list_head node;			/* in pb_channel.jobs */
	const struct pb_operation *operation;
	struct peerbar_gpu_submit request;
	struct pb_buffer *buffers[PB_OPERANDS];	/* NULL if the operand is a number */
	u16 begun;				/* bit i: buffer i is in use */
	u64 units;				/* in total */
	u64 sent;				/* of them, given to the device */
	u64 done;				/* of them, completed by the device */
	bool started;				/* some command was given to the device */
	u64 result;
	u32 error;				/* not 0: the reason why it was cancelled */
};

/* job.c */
struct pb_job *pb_job_create(struct pb_file *file, const struct peerbar_gpu_submit *request);
void pb_job_free(struct pb_job *job);
bool pb_job_uses(const struct pb_job *job, const struct dma_buf *dmabuf);
void pb_job_cancel(struct pb_job *job, u32 error);
bool pb_job_is_sent(const struct pb_job *job);
u64 pb_job_send(struct pb_job *job, struct pb_command *command);
void pb_job_done(struct pb_job *job, u64 units, u64 result);
void pb_job_rewind(struct pb_job *job);

/* operation.c: the relation of an operation's operands when it is executed in parts. */
#define PB_STREAMS_MAX 3

enum pb_results {
	PB_RESULT_LAST,			/* there is one part */
	PB_RESULT_SUM,
	PB_RESULT_FIRST_DIFFERENCE,	/* an offset; the part's length if there is none */
};

struct pb_stream {
	u8 operand;
	u8 unit;	/* bytes of each unit that the operation counts */
};

struct pb_operation {
	u8 opcode;
	u8 kernel;
	bool repeatable;		/* may be repeated after a partial execution */
	bool apart;			/* the first two operands must not overlap */
	u8 nstreams;			/* 0: cannot be split */
	struct pb_stream streams[PB_STREAMS_MAX];
	u8 count;			/* the operand with the number of units */
	u16 fixed;			/* operands that every part has as a whole */
	u16 fixed_length;		/* their minimum length */
	/* The minimum length of each, if they differ. NULL: fixed_length. */
	u64 (*fixed_needed)(const struct peerbar_gpu_submit *request, unsigned int operand);
	u16 pattern;			/* an operand of 8 bytes that restarts with every part */
	enum pb_results results;
};

const struct pb_operation *pb_operation_of(u32 opcode, u32 kernel);

#endif
