// SPDX-License-Identifier: GPL-2.0
/*
 * Pairs of queues, created and deleted by admin commands through nvme's own admin queue (NVMe Base
 * 2.0, 5.4 to 5.7).
 *
 * nvme numbers its queues from 1 and uses no more than it has requested. So these are numbered
 * downwards from the last one that the controller has granted.
 */
#include <linux/dma-resv.h>
#include <linux/slab.h>

#include <nvme.h>

#include "disk.h"

#define PAGE_OF_QUEUE	4096
#define SUBMISSION_SIZE	64
#define COMPLETION_SIZE	16

struct pair {
	struct list_head node;		/* in nq_pairs.list */
	struct nq_disk *disk;
	u32 queue;
	enum peerbar_nvme_state state;	/* RESET is never stored: the controller is asked */
};

/*
 * The pairs of all files with one controller, so that no two have the same number. Commands that
 * create or delete them are serialized, so that a delete never hits a pair that another file has
 * created since. A controller that does not answer blocks no other.
 */
struct nq_pairs {
	struct kref refs;		/* those of the files */
	struct mutex lock;		/* list, and its pairs */
	struct list_head list;
	struct nvme_ctrl *ctrl;		/* kept by each of the files */
	struct list_head node;		/* in all_pairs, under nq_pairs_lock */
};

static LIST_HEAD(all_pairs);
static DEFINE_MUTEX(nq_pairs_lock);

/* With nq_pairs_lock. */
static struct nq_pairs *known(const struct nvme_ctrl *ctrl)
{
	struct nq_pairs *pairs;

	list_for_each_entry(pairs, &all_pairs, node) {
		if (pairs->ctrl == ctrl)
			return pairs;
	}
	return NULL;
}

/* With nq_pairs_lock. */
static struct nq_pairs *first_of(struct nvme_ctrl *ctrl)
{
	struct nq_pairs *pairs = kzalloc_obj(*pairs);

	if (!pairs)
		return NULL;
	kref_init(&pairs->refs);
	mutex_init(&pairs->lock);
	INIT_LIST_HEAD(&pairs->list);
	pairs->ctrl = ctrl;
	list_add_tail(&pairs->node, &all_pairs);
	return pairs;
}

/* For a file that keeps the controller until nq_pairs_put(). NULL without memory. */
struct nq_pairs *nq_pairs_of(struct nvme_ctrl *ctrl)
{
	struct nq_pairs *pairs;

	mutex_lock(&nq_pairs_lock);
	pairs = known(ctrl);
	if (pairs)
		kref_get(&pairs->refs);
	else
		pairs = first_of(ctrl);
	mutex_unlock(&nq_pairs_lock);
	return pairs;
}

/* With nq_pairs_lock, which it releases. */
static void free_pairs(struct kref *refs)
{
	struct nq_pairs *pairs = container_of(refs, struct nq_pairs, refs);

	list_del(&pairs->node);
	mutex_unlock(&nq_pairs_lock);
	kfree(pairs);
}

/* After nq_pairs_free(). */
void nq_pairs_put(struct nq_pairs *pairs)
{
	kref_put_mutex(&pairs->refs, free_pairs, &nq_pairs_lock);
}

/* ---- admin commands ---- */

/* An NVMe status, 0 for success, or a negative errno. */
static int submit(struct nvme_ctrl *ctrl, struct nvme_command *command)
{
	int status = nvme_submit_sync_cmd(ctrl->admin_q, command, NULL, 0);

	return status > 0 ? status & NVME_SCT_SC_MASK : status;
}

/*
 * If the last command of a batch is refused, Linux 7.3 rings no doorbell for the commands before
 * it, because nvme_fail_nonready_command() reports it as handled. They may be nvme's own, of a
 * reset, and nvme would give up the controller after a minute. As in blk-mq, only while the queue
 * is not quiesced: after that the old entries do not belong to this controller any more. Nor if
 * nvme has given up the controller, and runs the queue to make commands fail. nvme does not leave
 * the controller concurrently, because that requires nq_disk.lock.
 */
static void ring_for_others(struct nvme_ctrl *ctrl)
{
	struct request_queue *queue = ctrl->admin_q;
	struct blk_mq_hw_ctx *context;
	unsigned long i;

	rcu_read_lock();
	if (!blk_queue_quiesced(queue) && nq_state_error(ctrl) != -ENODEV) {
		queue_for_each_hw_ctx(queue, context, i) {
			if (queue->mq_ops->commit_rqs)
				queue->mq_ops->commit_rqs(context);
		}
	}
	rcu_read_unlock();
}

/*
 * As submit(), but nvme refuses the command unless the controller is live. During a reset it would
 * precede nvme's own Set Features, Number of Queues, which fails once there are queues: nvme would
 * continue without any, and drop the namespaces.
 */
static int submit_if_live(struct nvme_ctrl *ctrl, struct nvme_command *command)
{
	struct request *request;
	int status;

	status = nq_state_error(ctrl);
	if (status)
		return status;
	request = blk_mq_alloc_request(ctrl->admin_q, REQ_OP_DRV_OUT, 0);
	if (IS_ERR(request))
		return PTR_ERR(request);
	nvme_init_request(request, command);
	nvme_req(request)->flags |= NVME_REQ_USERCMD;
	status = nvme_execute_rq(request, false);
	blk_mq_free_request(request);
	if (status > 0)
		status &= NVME_SCT_SC_MASK;
	switch (status) {
	case NVME_SC_HOST_PATH_ERROR:
		ring_for_others(ctrl);
		return nq_state_error(ctrl) ?: -EAGAIN;
	case -EIO:
		/* nvme has closed the queue, for example for a reset. */
		ring_for_others(ctrl);
		return nq_state_error(ctrl) ?: -EIO;
	case -EINTR:
		/* A reset has cancelled it. */
		return nq_state_error(ctrl) ?: -EAGAIN;
	default:
		return status;
	}
}

/* PRP 1 remains unchanged, because the command has no data. */
static int create_completion(struct nvme_ctrl *ctrl, u32 queue, u64 address, u32 entries)
{
	struct nvme_command command = {
		.create_cq.opcode = nvme_admin_create_cq,
		.create_cq.prp1 = cpu_to_le64(address),
		.create_cq.cqid = cpu_to_le16(queue),
		.create_cq.qsize = cpu_to_le16(entries - 1),
		.create_cq.cq_flags = cpu_to_le16(NVME_QUEUE_PHYS_CONTIG),
	};

	return submit_if_live(ctrl, &command);
}

static int create_submission(struct nvme_ctrl *ctrl, u32 queue, u64 address, u32 entries)
{
	struct nvme_command command = {
		.create_sq.opcode = nvme_admin_create_sq,
		.create_sq.prp1 = cpu_to_le64(address),
		.create_sq.sqid = cpu_to_le16(queue),
		.create_sq.qsize = cpu_to_le16(entries - 1),
		.create_sq.sq_flags = cpu_to_le16(NVME_QUEUE_PHYS_CONTIG | NVME_SQ_PRIO_MEDIUM),
		.create_sq.cqid = cpu_to_le16(queue),
	};

	return submit_if_live(ctrl, &command);
}

static int delete_queue(struct nvme_ctrl *ctrl, u8 opcode, u32 queue)
{
	struct nvme_command command = {
		.delete_queue.opcode = opcode,
		.delete_queue.qid = cpu_to_le16(queue),
	};

	return submit(ctrl, &command);
}

/* ---- with the lock of the controller's pairs ---- */

u32 nq_linux_queues(const struct nvme_ctrl *ctrl)
{
	/* It counts the admin queue. */
	return max(READ_ONCE(ctrl->queue_count), 1U) - 1;
}

/*
 * Deletes it; returns true if the controller now has no such queue. A controller without it was
 * reset.
 */
static bool is_deleted(struct nvme_ctrl *ctrl, u8 opcode, u32 queue)
{
	int status = delete_queue(ctrl, opcode, queue);

	return !status || status == NVME_SC_QID_INVALID;
}

/*
 * Once this returns, the controller does not use the pair. A controller that refuses is reset; if
 * that fails, nvme has disabled it.
 */
static void delete_pair(struct nq_disk *disk, u32 queue)
{
	struct nvme_ctrl *ctrl = disk->ctrl;

	/* After a reset, nvme may have more queues than before. */
	if (queue <= nq_linux_queues(ctrl))
		return;
	/*
	 * A controller that is not there does no DMA, and would not answer before nvme's time-out.
	 */
	if (!pci_device_is_present(disk->pdev))
		return;
	if (is_deleted(ctrl, nvme_admin_delete_sq, queue) &&
	    is_deleted(ctrl, nvme_admin_delete_cq, queue))
		return;
	pci_warn(disk->pdev, "does not delete queue %u: it is reset\n", queue);
	nvme_reset_ctrl(ctrl);
	flush_work(&ctrl->reset_work);
}

/*
 * Deleting a completion queue with a submission queue is refused, and for a missing queue the
 * status is another one. So this changes nothing.
 */
static int state_of(struct nq_disk *disk, u32 queue)
{
	int status;

	if (queue <= nq_linux_queues(disk->ctrl))
		return PEERBAR_NVME_RESET;
	status = delete_queue(disk->ctrl, nvme_admin_delete_cq, queue);
	if (status == NVME_SC_INVALID_QUEUE)
		return PEERBAR_NVME_LIVE;
	return status == NVME_SC_QID_INVALID ? PEERBAR_NVME_RESET : -EIO;
}

static struct pair *find(const struct nq_disk *disk, u32 queue)
{
	struct pair *pair;

	list_for_each_entry(pair, &disk->pairs->list, node) {
		if (pair->disk == disk && pair->queue == queue)
			return pair;
	}
	return NULL;
}

static bool is_taken(const struct nq_pairs *pairs, u32 queue)
{
	struct pair *pair;

	list_for_each_entry(pair, &pairs->list, node) {
		if (pair->queue == queue)
			return true;
	}
	return false;
}

/* 0 if there is none. */
static u32 free_number(const struct nq_disk *disk)
{
	u32 least = nq_linux_queues(disk->ctrl);
	u32 queue;

	for (queue = disk->granted; queue > least; queue--) {
		if (!is_taken(disk->pairs, queue))
			return queue;
	}
	return 0;
}

static int refused(struct nq_disk *disk, u32 queue, const char *what, int status)
{
	if (status < 0)
		return status;
	pci_warn(disk->pdev, "refuses %s queue %u with status %#x\n", what, queue, status);
	return -EIO;
}

static int create_both(struct nq_disk *disk, u32 queue, u64 address,
		       const struct peerbar_nvme_create *create)
{
	struct nvme_ctrl *ctrl = disk->ctrl;
	int status;

	status = create_completion(ctrl, queue, address + create->completion, create->entries);
	if (status)
		return refused(disk, queue, "completion", status);
	status = create_submission(ctrl, queue, address + create->submission, create->entries);
	if (!status)
		return 0;
	delete_pair(disk, queue);
	/* The completion queue is gone: a reset came in between. */
	return status == NVME_SC_CQ_INVALID ? -EAGAIN : refused(disk, queue, "submission", status);
}

static int create_pair(struct nq_disk *disk, u64 address, struct peerbar_nvme_create *create)
{
	struct pair *pair;
	int error;

	pair = kzalloc_obj(*pair);
	if (!pair)
		return -ENOMEM;
	pair->disk = disk;
	pair->queue = free_number(disk);
	error = pair->queue ? create_both(disk, pair->queue, address, create) : -ENOSPC;
	if (error) {
		kfree(pair);
		return error;
	}
	list_add_tail(&pair->node, &disk->pairs->list);
	create->queue = pair->queue;
	create->tail = nq_doorbell(disk, pair->queue, false);
	create->head = nq_doorbell(disk, pair->queue, true);
	return 0;
}

/* ---- requests, with nq_disk.lock ---- */

static bool fits(u64 size, u64 address, u64 offset, u64 bytes)
{
	u64 end;

	return !check_add_overflow(offset, bytes, &end) && end <= size &&
	       IS_ALIGNED(address + offset, PAGE_OF_QUEUE);
}

static int create_in(struct nq_memory *memory, struct peerbar_nvme_create *create)
{
	struct nq_disk *disk = memory->disk;
	u64 entries = create->entries;
	u64 size = memory->dmabuf->size;
	u64 address;
	int error;

	if (!memory->sgt)
		return -ENODEV;
	address = sg_dma_address(memory->sgt->sgl);
	if (entries < 2 || entries > NVME_CAP_MQES(disk->ctrl->cap) + 1 ||
	    !fits(size, address, create->submission, entries * SUBMISSION_SIZE) ||
	    !fits(size, address, create->completion, entries * COMPLETION_SIZE))
		return -EINVAL;
	mutex_lock(&disk->pairs->lock);
	error = create_pair(disk, address, create);
	mutex_unlock(&disk->pairs->lock);
	return error;
}

int nq_create(struct nq_disk *disk, struct peerbar_nvme_create *create)
{
	struct nq_memory *memory = xa_load(&disk->memories, create->memory);
	int error;

	if (!memory || memory->unwanted)
		return -ENOENT;
	/* It is not revoked concurrently. */
	dma_resv_lock(memory->dmabuf->resv, NULL);
	error = create_in(memory, create);
	dma_resv_unlock(memory->dmabuf->resv);
	return error;
}

int nq_delete(struct nq_disk *disk, u32 queue)
{
	struct pair *pair;

	mutex_lock(&disk->pairs->lock);
	pair = find(disk, queue);
	if (pair) {
		if (pair->state == PEERBAR_NVME_LIVE)
			delete_pair(disk, queue);
		list_del(&pair->node);
	}
	mutex_unlock(&disk->pairs->lock);
	if (!pair)
		return -ENOENT;
	kfree(pair);
	nq_memories_clear(disk);
	return 0;
}

int nq_query(struct nq_disk *disk, struct peerbar_nvme_query *query)
{
	struct pair *pair;
	int state = -ENOENT;

	mutex_lock(&disk->pairs->lock);
	pair = find(disk, query->queue);
	if (pair)
		state = pair->state == PEERBAR_NVME_LIVE ? state_of(disk, query->queue) :
							   pair->state;
	mutex_unlock(&disk->pairs->lock);
	if (state < 0)
		return state;
	query->state = state;
	return 0;
}

bool nq_has_pairs(struct nq_disk *disk)
{
	struct pair *pair;
	bool has = false;

	mutex_lock(&disk->pairs->lock);
	list_for_each_entry(pair, &disk->pairs->list, node)
		has |= pair->disk == disk;
	mutex_unlock(&disk->pairs->lock);
	return has;
}

/*
 * Deletes all pairs that the controller may have, and records the reason. Also with a dma_resv
 * held.
 */
void nq_pairs_end(struct nq_disk *disk, enum peerbar_nvme_state state)
{
	struct pair *pair;

	mutex_lock(&disk->pairs->lock);
	list_for_each_entry(pair, &disk->pairs->list, node) {
		if (pair->disk != disk || pair->state != PEERBAR_NVME_LIVE)
			continue;
		delete_pair(disk, pair->queue);
		pair->state = state;
	}
	mutex_unlock(&disk->pairs->lock);
}

/* After nq_pairs_end(). */
void nq_pairs_free(struct nq_disk *disk)
{
	struct pair *pair, *next;

	mutex_lock(&disk->pairs->lock);
	list_for_each_entry_safe(pair, next, &disk->pairs->list, node) {
		if (pair->disk == disk) {
			list_del(&pair->node);
			kfree(pair);
		}
	}
	mutex_unlock(&disk->pairs->lock);
}
