// SPDX-License-Identifier: GPL-2.0
/*
 * A channel: a ring of commands in coherent memory, a fence for each entry, and the jobs of the
 * file that owns it.
 *
 * Jobs run in order. A job's commands can be taken back from the device (the channel is stopped,
 * the job rewound), because every completed part has written its fence. So an error of one job does
 * not affect the others. A reset of the device fails at most the job that it interrupts, if that
 * cannot be repeated.
 */
#include <linux/bitfield.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-mapping.h>
#include <linux/iopoll.h>
#include <linux/slab.h>

#include "gpu.h"

#define RING_BYTES	(PB_RING_ENTRIES * sizeof(struct pb_command))
#define FENCES_BYTES	(PB_RING_ENTRIES * sizeof(struct pb_fence))

/* At least one interrupt for this many entries, so that the ring is refilled before it is empty. */
#define INTERRUPT_EVERY	64

/* The longest command covers 1 GiB. */
#define STOP_TIMEOUT_US	(30 * USEC_PER_SEC)

static void __iomem *regs_of(struct pb_channel *channel)
{
	return channel->gpu->regs + PB_CHANNEL(channel->index);
}

static struct pb_job *first_job(struct pb_channel *channel)
{
	return list_first_entry_or_null(&channel->jobs, struct pb_job, node);
}

/* ---- the device's side ---- */

static void start(struct pb_channel *channel)
{
	void __iomem *regs = regs_of(channel);

	channel->head = 0;
	channel->tail = 0;
	writeq(channel->ring_address, regs + PB_CH_RING_ADDRESS);
	writel(PB_RING_SPACE_BUS, regs + PB_CH_RING_SPACE);
	writel(PB_RING_ENTRIES, regs + PB_CH_RING_ENTRIES);
	writel(PB_CH_ENABLE, regs + PB_CH_CONTROL);
}

static bool is_stopped(u32 status)
{
	return status == PB_ALL_ONES ||
	       (FIELD_GET(PB_CH_STATE, status) == PB_CH_OFF && !(status & PB_CH_STOPPING));
}

/* Returns once the device has made its last access for this channel. */
static int stop(struct pb_channel *channel)
{
	void __iomem *regs = regs_of(channel);
	u32 status;
	int error;

	writel(0, regs + PB_CH_CONTROL);
	error = readl_poll_timeout(regs + PB_CH_STATUS, status,
				   is_stopped(status),
				   20, STOP_TIMEOUT_US);
	if (error) {
		channel->broken = true;
		pb_file_broken(channel->owner);
		pci_err(channel->gpu->pdev,
			"channel %u still runs after it was disabled: its memory is not used again\n",
			channel->index);
	}
	return error;
}

static void ring_doorbell(struct pb_channel *channel)
{
	void __iomem *regs = channel->gpu->regs;

	writel(channel->tail, regs + PB_DOORBELL(channel->index));
	/*
	 * The device announces that it sleeps and then reads the doorbells, so one side sees the
	 * other.
	 */
	mb();
	if (readl(regs + PB_DOORBELL_ASLEEP(channel->index)))
		writel(1, regs + PB_REG_KICK);
}

/* ---- jobs to entries ---- */

static void put_entry(struct pb_channel *channel, struct pb_job *job)
{
	u32 index = channel->tail % PB_RING_ENTRIES;
	struct pb_command *command = &channel->ring[index];
	struct pb_slot *slot = &channel->slots[index];

	slot->job = job;
	slot->units = pb_job_send(job, command);
	slot->value = channel->next_value++;
	slot->last = pb_job_is_sent(job);
	command->fence = cpu_to_le64(channel->fences_address + index * sizeof(struct pb_fence));
	command->fence_value = cpu_to_le64(slot->value);
	command->flags = PB_FLAG_FENCE;
	if (slot->last || index % INTERRUPT_EVERY == INTERRUPT_EVERY - 1)
		command->flags |= PB_FLAG_INTERRUPT;
	channel->tail++;
}

static void fill_ring(struct pb_channel *channel)
{
	u32 before = channel->tail;
	struct pb_job *job;

	if (channel->paused || channel->broken)
		return;
	list_for_each_entry(job, &channel->jobs, node) {
		while (!pb_job_is_sent(job) && channel->tail - channel->head < PB_RING_ENTRIES)
			put_entry(channel, job);
		if (!pb_job_is_sent(job))
			break;
	}
	if (channel->tail != before)
		ring_doorbell(channel);
}

/* ---- entries to results ---- */

static void finish(struct pb_channel *channel, struct pb_job *job, u32 error)
{
	list_del(&job->node);
	pb_file_completed(channel->owner, error ? 0 : job->result, error);
	pb_job_free(job);
}

static bool take_fences(struct pb_channel *channel)
{
	u32 before = channel->head;

	while (channel->head != channel->tail) {
		u32 index = channel->head % PB_RING_ENTRIES;
		struct pb_slot *slot = &channel->slots[index];
		struct pb_fence *fence = &channel->fences[index];

		if (le64_to_cpu(READ_ONCE(fence->value)) != slot->value)
			break;
		/* The result was written before the value. */
		dma_rmb();
		pb_job_done(slot->job, slot->units, le64_to_cpu(READ_ONCE(fence->result)));
		if (slot->last)
			finish(channel, slot->job, slot->job->error);
		channel->head++;
	}
	return channel->head != before;
}

/* The device has forgotten its entries. */
static void rewind_jobs(struct pb_channel *channel)
{
	struct pb_job *job;

	channel->head = 0;
	channel->tail = 0;
	list_for_each_entry(job, &channel->jobs, node)
		pb_job_rewind(job);
}

/* The entry at the head has failed, and with it its job; the others continue. */
static void take_error(struct pb_channel *channel, u32 code)
{
	struct pb_job *job = channel->slots[channel->head % PB_RING_ENTRIES].job;

	if (stop(channel))
		return;
	finish(channel, job, code);
	rewind_jobs(channel);
	start(channel);
}

static bool take_status(struct pb_channel *channel)
{
	u32 status;

	if (channel->head == channel->tail)
		return false;
	status = readl(regs_of(channel) + PB_CH_STATUS);
	if (status == PB_ALL_ONES || FIELD_GET(PB_CH_STATE, status) != PB_CH_ERROR)
		return false;
	/* Entries that completed before the error may not have been seen yet. */
	take_fences(channel);
	if (channel->head == channel->tail)
		return false;
	take_error(channel, FIELD_GET(PB_CH_ERROR_CODE, status));
	return true;
}

/* Polls for completed commands. Returns true if jobs are left. */
bool pb_channel_progress(struct pb_channel *channel)
{
	bool left;

	mutex_lock(&channel->lock);
	if (channel->owner && !channel->paused && !channel->broken) {
		take_fences(channel);
		take_status(channel);
		fill_ring(channel);
	}
	left = !list_empty(&channel->jobs);
	mutex_unlock(&channel->lock);
	return left;
}

void pb_channel_queue(struct pb_channel *channel, struct pb_job *job)
{
	mutex_lock(&channel->lock);
	list_add_tail(&job->node, &channel->jobs);
	fill_ring(channel);
	mutex_unlock(&channel->lock);
}

/* ---- taking back what the device has ---- */

/* The command at the head may have been executed in part, and some commands cannot be repeated. */
static void fail_begun(struct pb_channel *channel, u32 error)
{
	struct pb_job *job;

	if (channel->head == channel->tail)
		return;
	job = channel->slots[channel->head % PB_RING_ENTRIES].job;
	if (!job->operation->repeatable)
		finish(channel, job, error);
}

/* For a channel that is stopped. */
static void take_back(struct pb_channel *channel, u32 error)
{
	take_fences(channel);
	fail_begun(channel, error);
	rewind_jobs(channel);
}

static bool uses(struct pb_channel *channel, const struct dma_buf *dmabuf)
{
	struct pb_job *job;

	list_for_each_entry(job, &channel->jobs, node) {
		if (pb_job_uses(job, dmabuf))
			return true;
	}
	return false;
}

/*
 * Ends the use of a dma-buf that its exporter takes away: commands that use it fail, and with them
 * one in progress that cannot be repeated.
 */
void pb_channel_take_back(struct pb_channel *channel, const struct dma_buf *dmabuf)
{
	struct pb_job *job;

	mutex_lock(&channel->lock);
	if (!channel->broken && uses(channel, dmabuf) && !stop(channel)) {
		take_back(channel, PEERBAR_GPU_ERROR_REVOKED);
		list_for_each_entry(job, &channel->jobs, node) {
			if (pb_job_uses(job, dmabuf))
				pb_job_cancel(job, PEERBAR_GPU_ERROR_REVOKED);
		}
		if (!channel->paused) {
			start(channel);
			fill_ring(channel);
		}
	}
	mutex_unlock(&channel->lock);
}

/* ---- reset ---- */

/*
 * Keeps the device from beginning further commands. All channels are disabled before any is waited
 * for: the device may be busy with a command of one channel, and would complete commands of the
 * others until then.
 */
void pb_channel_disable(struct pb_channel *channel)
{
	mutex_lock(&channel->lock);
	channel->paused = true;
	if (channel->owner && !channel->broken)
		writel(0, regs_of(channel) + PB_CH_CONTROL);
	mutex_unlock(&channel->lock);
}

/* The device is about to forget everything: takes back all commands that it has not completed. */
void pb_channel_pause(struct pb_channel *channel)
{
	mutex_lock(&channel->lock);
	if (channel->owner && !channel->broken && !stop(channel))
		take_back(channel, PEERBAR_GPU_ERROR_RESET);
	mutex_unlock(&channel->lock);
}

void pb_channel_resume(struct pb_channel *channel)
{
	mutex_lock(&channel->lock);
	channel->paused = false;
	if (channel->owner && !channel->broken) {
		start(channel);
		fill_ring(channel);
	}
	mutex_unlock(&channel->lock);
}

/* ---- owners ---- */

static void free_memory(struct pb_channel *channel)
{
	struct device *dev = &channel->gpu->pdev->dev;

	if (channel->ring)
		dma_free_coherent(dev, RING_BYTES, channel->ring, channel->ring_address);
	if (channel->fences)
		dma_free_coherent(dev, FENCES_BYTES, channel->fences, channel->fences_address);
	kvfree(channel->slots);
	channel->ring = NULL;
	channel->fences = NULL;
	channel->slots = NULL;
}

static int alloc_memory(struct pb_channel *channel)
{
	struct device *dev = &channel->gpu->pdev->dev;

	channel->ring = dma_alloc_coherent(dev, RING_BYTES, &channel->ring_address, GFP_KERNEL);
	channel->fences = dma_alloc_coherent(dev, FENCES_BYTES, &channel->fences_address,
					     GFP_KERNEL);
	channel->slots = kvcalloc(PB_RING_ENTRIES, sizeof(*channel->slots), GFP_KERNEL);
	if (channel->ring && channel->fences && channel->slots)
		return 0;
	free_memory(channel);
	return -ENOMEM;
}

void pb_channel_init(struct pb_gpu *gpu, unsigned int index)
{
	struct pb_channel *channel = &gpu->channels[index];

	channel->gpu = gpu;
	channel->index = index;
	/* Fences start at 0. */
	channel->next_value = 1;
	mutex_init(&channel->lock);
	INIT_LIST_HEAD(&channel->jobs);
}

static struct pb_channel *find_free(struct pb_gpu *gpu)
{
	unsigned int i;

	for (i = 0; i < PB_CHANNELS; i++) {
		if (!gpu->channels[i].owner && !gpu->channels[i].broken)
			return &gpu->channels[i];
	}
	return NULL;
}

/* Returns true if the caller's user has as many channels as a user may have. */
static bool has_all(struct pb_gpu *gpu)
{
	unsigned int i, count = 0;

	for (i = 0; i < PB_CHANNELS; i++) {
		struct pb_channel *channel = &gpu->channels[i];

		/* A channel that did not stop is lost, and counts for its last user. */
		if ((channel->owner || channel->broken) && uid_eq(channel->user, current_uid()))
			count++;
	}
	return count >= PB_CHANNELS_OF_A_USER && !capable(CAP_SYS_RESOURCE);
}

/* Returns a channel for the file; EBUSY if there is none, or the user has reached the limit. */
struct pb_channel *pb_channel_open(struct pb_gpu *gpu, struct pb_file *owner)
{
	struct pb_channel *channel;
	int error;

	mutex_lock(&gpu->channels_lock);
	channel = has_all(gpu) ? NULL : find_free(gpu);
	error = channel ? alloc_memory(channel) : -EBUSY;
	if (!error) {
		mutex_lock(&channel->lock);
		channel->owner = owner;
		channel->user = current_uid();
		start(channel);
		mutex_unlock(&channel->lock);
	}
	mutex_unlock(&gpu->channels_lock);
	return error ? ERR_PTR(error) : channel;
}

/*
 * Ends the command in progress and drops the others. A channel that does not stop keeps everything
 * that it may still use.
 */
void pb_channel_close(struct pb_channel *channel)
{
	struct pb_job *job;

	mutex_lock(&channel->gpu->channels_lock);
	mutex_lock(&channel->lock);
	if (!channel->broken && !stop(channel)) {
		while ((job = first_job(channel))) {
			list_del(&job->node);
			pb_job_free(job);
		}
		free_memory(channel);
	}
	channel->owner = NULL;
	mutex_unlock(&channel->lock);
	mutex_unlock(&channel->gpu->channels_lock);
}

void pb_channel_wake_owner(struct pb_channel *channel)
{
	mutex_lock(&channel->lock);
	if (channel->owner)
		wake_up_all(&channel->owner->wait);
	mutex_unlock(&channel->lock);
}
