// SPDX-License-Identifier: GPL-2.0
/* Results of commands: waits, and notification by poll or an eventfd. */
#include <linux/jiffies.h>
#include <linux/poll.h>

#include "gpu.h"

/* Commands of a file end in the order in which they were submitted. */
void pb_file_completed(struct pb_file *file, u64 result, u32 error)
{
	spin_lock(&file->results_lock);
	file->completed++;
	file->results[file->completed % PB_JOBS_MAX] = (struct pb_result){ result, error };
	if (file->eventfd)
		eventfd_signal(file->eventfd);
	spin_unlock(&file->results_lock);
	wake_up_all(&file->wait);
}

/* Commands in progress will not end, or their result is unknown: all waiters get an error. */
void pb_file_broken(struct pb_file *file)
{
	WRITE_ONCE(file->broken, true);
	wake_up_all(&file->wait);
}

static bool is_completed(struct pb_file *file, u64 fence)
{
	bool completed;

	spin_lock(&file->results_lock);
	completed = file->completed >= fence;
	spin_unlock(&file->results_lock);
	return completed;
}

static int take_result(struct pb_file *file, struct peerbar_gpu_wait *wait)
{
	int error = -ESTALE;

	spin_lock(&file->results_lock);
	file->seen = max(file->seen, wait->fence);
	if (file->completed - wait->fence < PB_JOBS_MAX) {
		const struct pb_result *result = &file->results[wait->fence % PB_JOBS_MAX];

		wait->result = result->result;
		wait->error = result->error;
		error = 0;
	}
	spin_unlock(&file->results_lock);
	return error;
}

static long timeout_of(u64 ns)
{
	u64 jiffies = nsecs_to_jiffies64(ns);

	/* One more jiffy, because the current one has already begun; none for a mere poll. */
	return ns ? min_t(u64, jiffies, MAX_SCHEDULE_TIMEOUT - 1) + 1 : 0;
}

int pb_file_wait(struct pb_file *file, struct peerbar_gpu_wait *wait)
{
	long left;

	if (!wait->fence || wait->fence > READ_ONCE(file->submitted))
		return -EINVAL;
	left = wait_event_interruptible_timeout(file->wait,
						is_completed(file, wait->fence) ||
						READ_ONCE(file->broken) ||
						READ_ONCE(file->gpu->gone),
						timeout_of(wait->timeout_ns));
	if (is_completed(file, wait->fence))
		return take_result(file, wait);
	if (READ_ONCE(file->gpu->gone))
		return -ENODEV;
	if (READ_ONCE(file->broken))
		return -EIO;
	return left < 0 ? -EINTR : -ETIMEDOUT;
}

/* -1 removes the eventfd. */
int pb_file_eventfd(struct pb_file *file, int fd)
{
	struct eventfd_ctx *eventfd = NULL;

	if (fd < -1)
		return -EINVAL;
	if (fd != -1) {
		eventfd = eventfd_ctx_fdget(fd);
		if (IS_ERR(eventfd))
			return PTR_ERR(eventfd);
	}
	spin_lock(&file->results_lock);
	swap(file->eventfd, eventfd);
	spin_unlock(&file->results_lock);
	if (eventfd)
		eventfd_ctx_put(eventfd);
	return 0;
}

__poll_t pb_file_poll(struct file *filp, struct poll_table_struct *table)
{
	struct pb_file *file = filp->private_data;
	__poll_t events = 0;

	poll_wait(filp, &file->wait, table);
	poll_wait(filp, &file->gpu->going, table);
	spin_lock(&file->results_lock);
	if (file->completed > file->seen)
		events |= EPOLLIN | EPOLLRDNORM;
	spin_unlock(&file->results_lock);
	if (READ_ONCE(file->broken))
		events |= EPOLLERR;
	if (READ_ONCE(file->gpu->gone))
		events |= EPOLLHUP | EPOLLERR;
	return events;
}
