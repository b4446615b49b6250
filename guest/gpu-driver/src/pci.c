// SPDX-License-Identifier: GPL-2.0
/* The PCI function: its probe, reset and removal. */
#include <linux/bitfield.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/iopoll.h>
#include <linux/module.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include "gpu.h"

#define READY_TIMEOUT_US (10 * USEC_PER_SEC)

static DEFINE_IDA(numbers);

/*
 * Releases buffers whose last user must not sleep. It belongs to the module, because it outlives
 * all of them.
 */
struct workqueue_struct *pb_releases;

static void gpu_free(struct kref *refs)
{
	struct pb_gpu *gpu = container_of(refs, struct pb_gpu, refs);

	pb_inode_free(gpu->inode);
	kfree(gpu->misc.name);
	pci_dev_put(gpu->pdev);
	kfree(gpu);
}

void pb_gpu_put(struct pb_gpu *gpu)
{
	kref_put(&gpu->refs, gpu_free);
}

/* ---- interrupts ---- */

static void log_fault(struct pb_gpu *gpu, u32 info, u64 address)
{
	pci_info_ratelimited(gpu->pdev, "fault %lu on a %s at %#llx, channel %lu\n",
			     FIELD_GET(PB_FAULT_CODE, info),
			     info & PB_FAULT_WRITE ? "write" : "read", address,
			     FIELD_GET(PB_FAULT_CHANNEL, info));
}

static irqreturn_t device_interrupt(int irq, void *data)
{
	struct pb_gpu *gpu = data;
	unsigned int i;

	for (i = 0; i < PB_FAULTS_KEPT; i++) {
		u32 info = readl(gpu->regs + PB_REG_FAULT_INFO);

		if (info == PB_ALL_ONES || !(info & PB_FAULT_VALID))
			break;
		log_fault(gpu, info, readq(gpu->regs + PB_REG_FAULT_ADDRESS));
		writel(1, gpu->regs + PB_REG_FAULT_ACK);
	}
	return IRQ_HANDLED;
}

static irqreturn_t channel_interrupt(int irq, void *data)
{
	pb_channel_progress(data);
	return IRQ_HANDLED;
}

/* Vector 0 is the device's, the others are the channels'. */
static void *owner_of(struct pb_gpu *gpu, unsigned int vector)
{
	if (!vector)
		return gpu;
	return &gpu->channels[vector - 1];
}

static void free_interrupts(struct pb_gpu *gpu, unsigned int vectors)
{
	while (vectors--)
		free_irq(pci_irq_vector(gpu->pdev, vectors), owner_of(gpu, vectors));
	pci_free_irq_vectors(gpu->pdev);
}

static int request_interrupts(struct pb_gpu *gpu)
{
	unsigned int vector;
	int error;

	error = pci_alloc_irq_vectors(gpu->pdev, PB_VECTORS, PB_VECTORS, PCI_IRQ_MSIX);
	if (error < 0)
		return dev_err_probe(&gpu->pdev->dev, error, "needs %d MSI-X vectors\n",
				     PB_VECTORS);
	for (vector = 0; vector < PB_VECTORS; vector++) {
		error = request_threaded_irq(pci_irq_vector(gpu->pdev, vector), NULL,
					     vector ? channel_interrupt : device_interrupt,
					     IRQF_ONESHOT, gpu->misc.name, owner_of(gpu, vector));
		if (error) {
			free_interrupts(gpu, vector);
			return error;
		}
	}
	return 0;
}

/* ---- coming ---- */

static int wait_ready(struct pb_gpu *gpu)
{
	u32 status;

	return readl_poll_timeout(gpu->regs + PB_REG_STATUS, status,
				  status != PB_ALL_ONES && status & PB_STATUS_READY, 20,
				  READY_TIMEOUT_US);
}

static int reset_device(struct pb_gpu *gpu)
{
	writel(PB_CONTROL_RESET, gpu->regs + PB_REG_CONTROL);
	return wait_ready(gpu);
}

static int identify(struct pb_gpu *gpu)
{
	struct device *dev = &gpu->pdev->dev;
	u32 id = readl(gpu->regs + PB_REG_ID);
	u32 version = readl(gpu->regs + PB_REG_VERSION);
	int error;

	if (id != PB_ID || version != PB_VERSION)
		return dev_err_probe(dev, -ENODEV,
				     "no peerbar GPU of version %d: identity %#x, version %u\n",
				     PB_VERSION, id, version);
	error = reset_device(gpu);
	if (error)
		return dev_err_probe(dev, error, "does not become ready\n");
	gpu->vram_size = readq(gpu->regs + PB_REG_VRAM_SIZE);
	atomic64_set(&gpu->next_mmap_offset, gpu->vram_size);
	gpu->aperture_size = readq(gpu->regs + PB_REG_APERTURE_SIZE);
	gpu->window = readl(gpu->regs + PB_REG_FEATURES) & PB_FEATURE_WINDOW;
	if (gpu->aperture_size != pci_resource_len(gpu->pdev, PB_BAR_APERTURE) ||
	    gpu->aperture_size > gpu->vram_size || readl(gpu->regs + PB_REG_CHANNELS) < PB_CHANNELS)
		return dev_err_probe(dev, -ENODEV,
				     "describes itself wrongly: aperture %#llx, VRAM %#llx\n",
				     gpu->aperture_size, gpu->vram_size);
	return 0;
}

static int open_bars(struct pb_gpu *gpu)
{
	struct pci_dev *pdev = gpu->pdev;
	int error;

	error = pcim_enable_device(pdev);
	if (error)
		return error;
	error = pcim_request_region(pdev, PB_BAR_APERTURE, KBUILD_MODNAME);
	if (error)
		return error;
	gpu->regs = pcim_iomap_region(pdev, PB_BAR_REGS, KBUILD_MODNAME);
	if (IS_ERR(gpu->regs))
		return PTR_ERR(gpu->regs);
	pci_set_master(pdev);
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	return dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
}

/* Makes VRAM available to others: as p2pmem, or page by page. */
static int provide(struct pb_gpu *gpu)
{
	int error;

	if (gpu->window) {
#ifdef PB_HAS_PHYS_VEC_TO_SGT
		error = pcim_p2pdma_init(gpu->pdev);
		if (error)
			return error;
#endif
		return pb_window_init(gpu);
	}
	error = pci_p2pdma_add_resource(gpu->pdev, PB_BAR_APERTURE, gpu->aperture_size, 0);
	if (error)
		return dev_err_probe(&gpu->pdev->dev, error,
				     "VRAM cannot become peer-to-peer memory\n");
	pci_p2pmem_publish(gpu->pdev, true);
	return 0;
}

/* ---- watching ---- */

/* Waiters notice it; new requests are refused. */
static void stop_requests(struct pb_gpu *gpu)
{
	unsigned int i;

	WRITE_ONCE(gpu->gone, true);
	wake_up_all(&gpu->going);
	for (i = 0; i < PB_CHANNELS; i++)
		pb_channel_wake_owner(&gpu->channels[i]);
}

/*
 * Notices events without an interrupt: a device that is gone, and an interrupt that was lost. Runs
 * while there are jobs. Without a job nothing is read, because the device may be used as mere
 * memory.
 */
static void watch(struct work_struct *work)
{
	struct pb_gpu *gpu = container_of(to_delayed_work(work), struct pb_gpu, watch);
	bool left = false;
	unsigned int i;

	for (i = 0; i < PB_CHANNELS; i++)
		left |= pb_channel_progress(&gpu->channels[i]);
	if (!left)
		return;
	if (readl(gpu->regs + PB_REG_ID) == PB_ALL_ONES) {
		pci_info(gpu->pdev, "is gone: its registers read all-ones\n");
		stop_requests(gpu);
		return;
	}
	schedule_delayed_work(&gpu->watch, HZ);
}

/* ---- probe ---- */

static struct pb_gpu *gpu_alloc(struct pci_dev *pdev)
{
	struct pb_gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	unsigned int i;

	if (!gpu)
		return ERR_PTR(-ENOMEM);
	gpu->inode = pb_inode_new();
	if (IS_ERR(gpu->inode)) {
		int error = PTR_ERR(gpu->inode);

		kfree(gpu);
		return ERR_PTR(error);
	}
	kref_init(&gpu->refs);
	gpu->pdev = pci_dev_get(pdev);
	init_rwsem(&gpu->alive);
	mutex_init(&gpu->buffers_lock);
	INIT_LIST_HEAD(&gpu->buffers);
	init_waitqueue_head(&gpu->left);
	init_waitqueue_head(&gpu->going);
	INIT_DELAYED_WORK(&gpu->watch, watch);
	mutex_init(&gpu->window_lock);
	mutex_init(&gpu->channels_lock);
	for (i = 0; i < PB_CHANNELS; i++)
		pb_channel_init(gpu, i);
	return gpu;
}

static int name_gpu(struct pb_gpu *gpu)
{
	gpu->number = ida_alloc(&numbers, GFP_KERNEL);
	if (gpu->number < 0)
		return gpu->number;
	gpu->misc.minor = MISC_DYNAMIC_MINOR;
	gpu->misc.name = kasprintf(GFP_KERNEL, "peerbar-gpu%d", gpu->number);
	gpu->misc.fops = &pb_file_operations;
	gpu->misc.parent = &gpu->pdev->dev;
	gpu->misc.mode = 0660;
	if (gpu->misc.name)
		return 0;
	ida_free(&numbers, gpu->number);
	return -ENOMEM;
}

/* In the order in which pb_remove releases it. */
static int bring_up(struct pb_gpu *gpu)
{
	int error;

	error = open_bars(gpu) ?: identify(gpu) ?: provide(gpu);
	if (error)
		return error;
	error = request_interrupts(gpu);
	if (error)
		goto exit_window;
	error = pb_clear_init(gpu);
	if (error)
		goto free_interrupts;
	error = misc_register(&gpu->misc);
	if (!error)
		return 0;
	pb_clear_exit(gpu);
free_interrupts:
	free_interrupts(gpu, PB_VECTORS);
exit_window:
	pb_window_exit(gpu);
	return error;
}

static int pb_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct pb_gpu *gpu = gpu_alloc(pdev);
	int error;

	if (IS_ERR(gpu))
		return PTR_ERR(gpu);
	error = name_gpu(gpu);
	if (error) {
		pb_gpu_put(gpu);
		return error;
	}
	pci_set_drvdata(pdev, gpu);
	error = bring_up(gpu);
	if (error) {
		ida_free(&numbers, gpu->number);
		pb_gpu_put(gpu);
		return error;
	}
	pci_info(pdev, "%s: %llu MiB of VRAM, %llu MiB aperture%s\n", gpu->misc.name,
		 gpu->vram_size >> 20, gpu->aperture_size >> 20, gpu->window ? ", a window" : "");
	return 0;
}

/* ---- leaving ---- */

static void close_channels(struct pb_gpu *gpu)
{
	unsigned int i;

	for (i = 0; i < PB_CHANNELS; i++) {
		if (gpu->channels[i].owner)
			pb_channel_close(&gpu->channels[i]);
	}
}

/* Files, mappings and dma-bufs may outlive this, but none of them reaches the device any more. */
static void pb_remove(struct pci_dev *pdev)
{
	struct pb_gpu *gpu = pci_get_drvdata(pdev);

	misc_deregister(&gpu->misc);
	stop_requests(gpu);
	/* A file that is closed now waits: until then, its channel reports completed commands. */
	down_write(&gpu->alive);
	gpu->removed = true;
	cancel_delayed_work_sync(&gpu->watch);
	close_channels(gpu);
	up_write(&gpu->alive);
	pb_clear_exit(gpu);
	/* A channel that did not stop must not reach released memory. */
	pci_clear_master(pdev);
	pb_buffers_leave(gpu);
	free_interrupts(gpu, PB_VECTORS);
	pb_window_exit(gpu);
	ida_free(&numbers, gpu->number);
	pb_gpu_put(gpu);
}

/* ---- reset ---- */

static void pb_reset_prepare(struct pci_dev *pdev)
{
	struct pb_gpu *gpu = pci_get_drvdata(pdev);
	unsigned int i;

	down_write(&gpu->alive);
	/* It would take a device in reset for one that is gone. */
	cancel_delayed_work_sync(&gpu->watch);
	for (i = 0; i < PB_CHANNELS; i++)
		pb_channel_disable(&gpu->channels[i]);
	for (i = 0; i < PB_CHANNELS; i++)
		pb_channel_pause(&gpu->channels[i]);
}

static void pb_reset_done(struct pci_dev *pdev)
{
	struct pb_gpu *gpu = pci_get_drvdata(pdev);
	unsigned int i;

	if (wait_ready(gpu)) {
		pci_err(pdev, "does not come back from the reset\n");
		stop_requests(gpu);
	} else {
		if (gpu->window)
			pb_window_restore(gpu);
		for (i = 0; i < PB_CHANNELS; i++)
			pb_channel_resume(&gpu->channels[i]);
		schedule_delayed_work(&gpu->watch, HZ);
	}
	up_write(&gpu->alive);
}

static const struct pci_error_handlers pb_error_handlers = {
	.reset_prepare = pb_reset_prepare,
	.reset_done = pb_reset_done,
};

static const struct pci_device_id pb_ids[] = {
	{ PCI_DEVICE(PB_VENDOR, PB_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, pb_ids);

static struct pci_driver pb_driver = {
	.name = "peerbar_gpu",
	.id_table = pb_ids,
	.probe = pb_probe,
	.remove = pb_remove,
	.err_handler = &pb_error_handlers,
};

static int __init pb_init(void)
{
	int error;

	pb_releases = alloc_workqueue("peerbar_gpu", WQ_UNBOUND, 0);
	if (!pb_releases)
		return -ENOMEM;
	error = pci_register_driver(&pb_driver);
	if (error)
		destroy_workqueue(pb_releases);
	return error;
}
module_init(pb_init);

static void __exit pb_exit(void)
{
	pci_unregister_driver(&pb_driver);
	destroy_workqueue(pb_releases);
	ida_destroy(&numbers);
}
module_exit(pb_exit);

MODULE_DESCRIPTION("peerbar GPU: peer-to-peer memory, command channels, dma-buf, pinned pages");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
