// SPDX-License-Identifier: GPL-2.0
/* /dev/peerbar-gpuN: the open files of programs, and their requests. */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpu.h"

/* Returns the buffer of that handle with a reference, or NULL. */
struct pb_buffer *pb_file_buffer(struct pb_file *file, u32 handle)
{
	struct pb_buffer *buffer;

	xa_lock(&file->buffers);
	buffer = xa_load(&file->buffers, handle);
	if (buffer)
		kref_get(&buffer->refs);
	xa_unlock(&file->buffers);
	return buffer;
}

/* Takes over the reference to the buffer. */
int pb_file_add(struct pb_file *file, struct pb_buffer *buffer, u32 *handle)
{
	int error;

	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	/* 1 means that handles have wrapped. */
	error = xa_alloc_cyclic(&file->buffers, handle, buffer, xa_limit_31b, &file->next_handle,
				GFP_KERNEL_ACCOUNT);
	if (error < 0)
		pb_buffer_put(buffer);
	return min(error, 0);
}

/*
 * The file releases a buffer. Pinned pages are invalid without their owner, so their holders are
 * notified.
 */
static void give_up(struct pb_buffer *buffer)
{
	if (buffer->space == PEERBAR_GPU_SPACE_VRAM)
		pb_pins_revoke(buffer);
	pb_buffer_put(buffer);
}

/* ---- requests ---- */

static int request_info(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_info *info = argument;
	struct pb_gpu *gpu = file->gpu;

	*info = (struct peerbar_gpu_info){
		.vram_size = gpu->vram_size,
		.aperture_size = gpu->aperture_size,
		.p2pmem_size = gpu->window ? 0 : gpu->aperture_size,
		/* One is the driver's own. */
		.channels = PB_CHANNELS - 1,
		.features = gpu->window ? PB_FEATURE_WINDOW : 0,
		.domain = pci_domain_nr(gpu->pdev->bus),
		.bus = gpu->pdev->bus->number,
		.devfn = gpu->pdev->devfn,
	};
	return 0;
}

static int request_alloc(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_alloc *alloc = argument;
	struct pb_buffer *buffer;
	int error;

	if (alloc->flags & ~PEERBAR_GPU_ALLOC_SCATTERED)
		return -EINVAL;
	buffer = pb_vram_create(file->gpu, alloc->size, alloc->flags & PEERBAR_GPU_ALLOC_SCATTERED);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	/* No owner may read the data of the previous owner. */
	error = pb_clear(buffer);
	if (error) {
		pb_buffer_put(buffer);
		return error;
	}
	alloc->size = buffer->size;
	alloc->mmap_offset = buffer->vram.mmap_offset;
	return pb_file_add(file, buffer, &alloc->handle);
}

static int request_free(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_free *free = argument;
	struct pb_buffer *buffer = xa_erase(&file->buffers, free->handle);

	if (!buffer)
		return -ENOENT;
	give_up(buffer);
	return 0;
}

static int query_vram(struct pb_buffer *buffer, struct peerbar_gpu_query *query)
{
	int error = pb_vram_show(buffer);

	if (error)
		return error;
	query->length = pb_piece_at(buffer, query->offset, &query->vram_offset);
	query->bus_address = pb_vram_bus_address(buffer, query->offset);
	return 0;
}

static int request_query(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_query *query = argument;
	struct pb_buffer *buffer = pb_file_buffer(file, query->handle);
	u64 address;
	int error;

	if (!buffer)
		return -ENOENT;
	query->space = buffer->space;
	query->vram_offset = 0;
	query->bus_address = 0;
	if (query->offset >= buffer->size) {
		error = -ERANGE;
	} else if (buffer->space == PEERBAR_GPU_SPACE_VRAM) {
		error = query_vram(buffer, query);
	} else {
		/* Temporary, since the pieces of an imported dma-buf may change. */
		error = pb_buffer_begin(buffer, true);
		if (!error) {
			/* Programs must not learn the addresses of host memory. */
			query->length = pb_piece_at(buffer, query->offset, &address);
			pb_buffer_end(buffer);
		}
	}
	pb_buffer_put(buffer);
	return error;
}

static int request_register(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_register *request = argument;

	return pb_file_add(file, pb_host_create(file->gpu, request->address, request->size),
			   &request->handle);
}

static int request_import(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_import *import = argument;
	struct pb_buffer *buffer = pb_import_create(file->gpu, import->fd);

	if (!IS_ERR(buffer))
		import->size = buffer->size;
	return pb_file_add(file, buffer, &import->handle);
}

/* With the file locked. */
static int submit(struct pb_file *file, struct peerbar_gpu_submit *request)
{
	struct pb_job *job;

	if (READ_ONCE(file->broken))
		return -EIO;
	if (file->submitted - READ_ONCE(file->completed) >= PB_JOBS_MAX)
		return -EAGAIN;
	if (!file->channel) {
		struct pb_channel *channel = pb_channel_open(file->gpu, file);

		if (IS_ERR(channel))
			return PTR_ERR(channel);
		file->channel = channel;
	}
	job = pb_job_create(file, request);
	if (IS_ERR(job))
		return PTR_ERR(job);
	request->fence = file->submitted + 1;
	WRITE_ONCE(file->submitted, request->fence);
	pb_channel_queue(file->channel, job);
	schedule_delayed_work(&file->gpu->watch, HZ);
	return 0;
}

int pb_file_submit(struct pb_file *file, struct peerbar_gpu_submit *request)
{
	int error;

	mutex_lock(&file->lock);
	error = submit(file, request);
	mutex_unlock(&file->lock);
	return error;
}

static int request_submit(struct pb_file *file, void *argument)
{
	return pb_file_submit(file, argument);
}

static int request_wait(struct pb_file *file, void *argument)
{
	return pb_file_wait(file, argument);
}

static int request_eventfd(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_eventfd *request = argument;

	return pb_file_eventfd(file, request->fd);
}

static int request_export(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_export *export = argument;
	struct pb_buffer *buffer;

	if (export->pad)
		return -EINVAL;
	buffer = pb_file_buffer(file, export->handle);
	if (!buffer)
		return -ENOENT;
	export->fd = pb_export(buffer, export->policy);
	pb_buffer_put(buffer);
	return min(export->fd, 0);
}

static int request_revoke(struct pb_file *file, void *argument)
{
	struct peerbar_gpu_revoke *revoke = argument;
	struct pb_buffer *buffer = pb_file_buffer(file, revoke->handle);
	int error;

	if (!buffer)
		return -ENOENT;
	error = pb_buffer_revoke(buffer);
	if (!error && buffer->space == PEERBAR_GPU_SPACE_VRAM &&
	    atomic_read(&buffer->vram.draining))
		error = -ETIMEDOUT;
	pb_buffer_put(buffer);
	return error;
}

struct request {
	unsigned int command;
	int (*serve)(struct pb_file *file, void *argument);
};

static const struct request requests[] = {
	{ PEERBAR_GPU_INFO, request_info },
	{ PEERBAR_GPU_ALLOC, request_alloc },
	{ PEERBAR_GPU_FREE, request_free },
	{ PEERBAR_GPU_QUERY, request_query },
	{ PEERBAR_GPU_REGISTER, request_register },
	{ PEERBAR_GPU_SUBMIT, request_submit },
	{ PEERBAR_GPU_WAIT, request_wait },
	{ PEERBAR_GPU_EVENTFD, request_eventfd },
	{ PEERBAR_GPU_EXPORT, request_export },
	{ PEERBAR_GPU_IMPORT, request_import },
	{ PEERBAR_GPU_REVOKE, request_revoke },
};

static const struct request *find_request(unsigned int command)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(requests); i++) {
		if (requests[i].command == command)
			return &requests[i];
	}
	return NULL;
}

static int serve(struct pb_file *file, const struct request *request, void *argument)
{
	struct pb_gpu *gpu = file->gpu;
	int error;

	/* A wait must not block the removal of the device, which ends the wait. */
	if (request->command == PEERBAR_GPU_WAIT)
		return request->serve(file, argument);
	error = down_read_interruptible(&gpu->alive);
	if (error)
		return error;
	error = gpu->gone ? -ENODEV : request->serve(file, argument);
	up_read(&gpu->alive);
	return error;
}

static long pb_ioctl(struct file *filp, unsigned int command, unsigned long address)
{
	const struct request *request = find_request(command);
	union {
		struct peerbar_gpu_submit largest;
		u8 bytes[sizeof(struct peerbar_gpu_submit)];
	} argument;
	void __user *user = (void __user *)address;
	size_t size = _IOC_SIZE(command);
	int error;

	if (!request)
		return -ENOTTY;
	memset(&argument, 0, sizeof(argument));
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(&argument, user, size))
		return -EFAULT;
	error = serve(filp->private_data, request, &argument);
	if (error)
		return error;
	if (_IOC_DIR(command) & _IOC_READ && copy_to_user(user, &argument, size))
		return -EFAULT;
	return 0;
}

/* ---- the file ---- */

static struct pb_buffer *buffer_at(struct pb_file *file, u64 offset, u64 length)
{
	struct pb_buffer *buffer;
	unsigned long handle;

	xa_lock(&file->buffers);
	xa_for_each(&file->buffers, handle, buffer) {
		u64 in_buffer = offset - buffer->vram.mmap_offset;

		if (buffer->space == PEERBAR_GPU_SPACE_VRAM && in_buffer < buffer->size &&
		    length <= buffer->size - in_buffer) {
			kref_get(&buffer->refs);
			xa_unlock(&file->buffers);
			return buffer;
		}
	}
	xa_unlock(&file->buffers);
	return NULL;
}

static int pb_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct pb_buffer *buffer;
	int error;

	buffer = buffer_at(filp->private_data, (u64)vma->vm_pgoff << PAGE_SHIFT,
			   vma->vm_end - vma->vm_start);
	if (!buffer)
		return -EINVAL;
	error = pb_vram_mmap(buffer, vma);
	pb_buffer_put_later(buffer);
	return error;
}

struct pb_file *pb_file_new(struct pb_gpu *gpu)
{
	struct pb_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return ERR_PTR(-ENOMEM);
	file->results = kvcalloc(PB_JOBS_MAX, sizeof(*file->results), GFP_KERNEL_ACCOUNT);
	if (!file->results) {
		kfree(file);
		return ERR_PTR(-ENOMEM);
	}
	file->gpu = gpu;
	kref_get(&gpu->refs);
	mutex_init(&file->lock);
	xa_init_flags(&file->buffers, XA_FLAGS_ALLOC1);
	spin_lock_init(&file->results_lock);
	init_waitqueue_head(&file->wait);
	return file;
}

void pb_file_end(struct pb_file *file)
{
	struct pb_gpu *gpu = file->gpu;
	struct pb_buffer *buffer;
	unsigned long handle;

	/*
	 * Excludes the removal of the device: it closes the channel itself, and must not reuse the
	 * memory before the holders of the pins that are notified here have released it.
	 */
	down_read(&gpu->alive);
	if (!gpu->removed && file->channel)
		pb_channel_close(file->channel);
	xa_for_each(&file->buffers, handle, buffer)
		give_up(buffer);
	up_read(&gpu->alive);
	xa_destroy(&file->buffers);
	if (file->eventfd)
		eventfd_ctx_put(file->eventfd);
	kvfree(file->results);
	kfree(file);
	pb_gpu_put(gpu);
}

static int pb_open(struct inode *inode, struct file *filp)
{
	struct pb_gpu *gpu = container_of(filp->private_data, struct pb_gpu, misc);
	struct pb_file *file = pb_file_new(gpu);

	if (IS_ERR(file))
		return PTR_ERR(file);
	/* So that a revoke finds all mappings. */
	filp->f_mapping = gpu->inode->i_mapping;
	filp->private_data = file;
	return 0;
}

static int pb_release(struct inode *inode, struct file *filp)
{
	pb_file_end(filp->private_data);
	return 0;
}

const struct file_operations pb_file_operations = {
	.owner = THIS_MODULE,
	.open = pb_open,
	.release = pb_release,
	.unlocked_ioctl = pb_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = pb_mmap,
	.poll = pb_file_poll,
};
