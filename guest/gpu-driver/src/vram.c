// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers in VRAM.
 *
 * In static mode a buffer consists of p2pmem pages, and each page lives as long as there is a
 * reference to it: the buffer's, a mapping's, or that of I/O in progress. So a page that a disk
 * still writes to is not allocated again, regardless of its owner. In window mode there are no
 * pages, and programs see the aperture as plain I/O memory.
 */
#include <linux/memremap.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include "gpu.h"
#include "older_kernels.h"

/* ---- pages of the p2pmem pool ---- */

static u64 vram_offset_of(struct pb_gpu *gpu, void *pages)
{
	return pci_p2pmem_virt_to_bus(gpu->pdev, pages) -
	       pci_bus_address(gpu->pdev, PB_BAR_APERTURE);
}

/*
 * Splits an allocation of the pool into pages that return to it one by one, each with its last
 * reference.
 */
static void make_independent(void *start, u64 size)
{
	struct percpu_ref *pool = &page_pgmap(virt_to_page(start))->ref;
	u64 offset;

	for (offset = 0; offset < size; offset += PAGE_SIZE) {
		set_page_count(virt_to_page(start + offset), 1);
		percpu_ref_get(pool);
	}
	/* The reference of the whole allocation. */
	percpu_ref_put(pool);
}

static void put_pages_from(void *start, u64 size)
{
	u64 offset;

	for (offset = 0; offset < size; offset += PAGE_SIZE)
		put_page(virt_to_page(start + offset));
}

/*
 * Allocates pages aligned to a page of the GPU. The pool knows no alignment, so the surplus is
 * freed.
 */
static void *alloc_pages_aligned(struct pb_gpu *gpu, u64 size)
{
	const u64 spare = PB_GPU_PAGE - PAGE_SIZE;
	void *start = pci_alloc_p2pmem(gpu->pdev, size);
	u64 before;

	if (!start)
		return NULL;
	if (IS_ALIGNED(vram_offset_of(gpu, start), PB_GPU_PAGE)) {
		make_independent(start, size);
		return start;
	}
	pci_free_p2pmem(gpu->pdev, start, size);
	start = pci_alloc_p2pmem(gpu->pdev, size + spare);
	if (!start)
		return NULL;
	make_independent(start, size + spare);
	before = -vram_offset_of(gpu, start) & (PB_GPU_PAGE - 1);
	put_pages_from(start, before);
	put_pages_from(start + before + size, spare - before);
	return start + before;
}

/* ---- mappings ---- */

static struct page *page_at(const struct pb_buffer *buffer, u64 offset)
{
	u64 address;

	pb_piece_at(buffer, offset, &address);
	return virt_to_page(buffer->vram.pages + address);
}

static vm_fault_t insert_pages(struct pb_buffer *buffer, struct vm_fault *vmf, u64 offset)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long address = vmf->address & PAGE_MASK;
	unsigned long from = max(vma->vm_start, ALIGN_DOWN(address, PB_GPU_PAGE));
	unsigned long to = min(vma->vm_end, ALIGN_DOWN(address, PB_GPU_PAGE) + PB_GPU_PAGE);
	unsigned long at;

	for (at = from; at < to; at += PAGE_SIZE) {
		struct page *page = page_at(buffer, offset + at - address);
		int error = vm_insert_page(vma, at, page);

		/* Busy: another thread was faster. */
		if (error && error != -EBUSY)
			return vmf_error(error);
	}
	return VM_FAULT_NOPAGE;
}

static vm_fault_t vram_fault(struct vm_fault *vmf)
{
	struct pb_buffer *buffer = vmf->vma->vm_private_data;
	u64 offset = ((u64)vmf->pgoff << PAGE_SHIFT) - buffer->vram.mmap_offset;
	vm_fault_t result;

	mutex_lock(&buffer->lock);
	if (buffer->revoked)
		result = VM_FAULT_SIGBUS;
	else if (buffer->vram.pages)
		result = insert_pages(buffer, vmf, offset);
	else
		result = vmf_insert_pfn(vmf->vma, vmf->address,
					(pci_resource_start(buffer->gpu->pdev, PB_BAR_APERTURE) +
					 buffer->vram.window + offset) >> PAGE_SHIFT);
	mutex_unlock(&buffer->lock);
	return result;
}

static void vram_vma_open(struct vm_area_struct *vma)
{
	struct pb_buffer *buffer = vma->vm_private_data;

	kref_get(&buffer->refs);
}

static void vram_vma_close(struct vm_area_struct *vma)
{
	/* Later, because mmap_lock is held. */
	pb_buffer_put_later(vma->vm_private_data);
}

static const struct vm_operations_struct vram_vm_ops = {
	.open = vram_vma_open,
	.close = vram_vma_close,
	.fault = vram_fault,
};

/* The caller has checked that the mapping lies in the buffer. */
int pb_vram_mmap(struct pb_buffer *buffer, struct vm_area_struct *vma)
{
	int error;

	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	error = pb_vram_show(buffer);
	if (error)
		return error;
	/* A child of fork() has no mapping until it maps. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP |
		     (buffer->vram.pages ? VM_MIXEDMAP : VM_PFNMAP | VM_IO));
	vma->vm_page_prot = buffer->vram.pages ? pgprot_writecombine(vma->vm_page_prot) :
						 pgprot_noncached(vma->vm_page_prot);
	kref_get(&buffer->refs);
	vma->vm_private_data = buffer;
	vma->vm_ops = &vram_vm_ops;
	return 0;
}

/* ---- the buffer ---- */

/* Makes the buffer visible in the aperture. In static mode it always is. */
int pb_vram_show(struct pb_buffer *buffer)
{
	struct pb_vram *vram = &buffer->vram;
	int error = 0;

	mutex_lock(&buffer->lock);
	if (buffer->revoked)
		error = -ENODEV;
	else if (vram->window == PB_NOT_SHOWN)
		error = pb_window_map(buffer->gpu, buffer->pieces[0].address, buffer->size,
				      &vram->window);
	mutex_unlock(&buffer->lock);
	return error;
}

/*
 * Returns the offset in the aperture of memory at this address in VRAM. In static mode it is the
 * same; a window shows the buffer's only piece.
 */
u64 pb_vram_in_aperture(const struct pb_buffer *buffer, u64 address)
{
	const struct pb_vram *vram = &buffer->vram;

	return vram->pages ? address : vram->window + (address - buffer->pieces[0].address);
}

u64 pb_vram_bus_address(const struct pb_buffer *buffer, u64 offset)
{
	u64 address;

	pb_piece_at(buffer, offset, &address);
	return pci_bus_address(buffer->gpu->pdev, PB_BAR_APERTURE) +
	       pb_vram_in_aperture(buffer, address);
}

/*
 * From here on the window refuses accesses to the buffer's bus addresses. They are not reused as
 * long as the buffer has a mapping: VFIO's type 1 keeps the addresses of a revoked mapping, and
 * must not reach the next owner's memory through them.
 */
static void hide(struct pb_buffer *buffer)
{
	struct pb_vram *vram = &buffer->vram;

	if (vram->pages || vram->window == PB_NOT_SHOWN || vram->hidden)
		return;
	/* First, so that no concurrent reset restores the entries. */
	WRITE_ONCE(vram->hidden, true);
	pb_window_clear(buffer->gpu, vram->window, buffer->size);
}

/* Returns true if peers may still access memory that was revoked. */
static bool in_use(const struct pb_buffer *buffer)
{
	const struct pb_vram *vram = &buffer->vram;

	return atomic_read(&vram->persistent) || atomic_read(&vram->draining) ||
	       atomic_read(&vram->mapped) || READ_ONCE(buffer->pinned);
}

static void vram_revoke(struct pb_buffer *buffer)
{
	unmap_mapping_range(buffer->gpu->inode->i_mapping, buffer->vram.mmap_offset, buffer->size,
			    1);
	pb_exports_revoke(buffer);
	pb_pins_revoke(buffer);
	mutex_lock(&buffer->lock);
	if (!in_use(buffer))
		hide(buffer);
	mutex_unlock(&buffer->lock);
}

static void put_pieces(struct pb_buffer *buffer)
{
	unsigned int i;

	for (i = 0; i < buffer->npieces; i++)
		put_pages_from(buffer->vram.pages + buffer->pieces[i].address,
			       buffer->pieces[i].length);
}

static void vram_drop(struct pb_buffer *buffer)
{
	/*
	 * There are users only if the device is removed while they are active: the kernel's record
	 * of our BAR must outlive every mapping that was made from it, persistent pins and
	 * importers that have pinned a dma-buf are not notified, and fences of importers may be
	 * late.
	 */
	if (in_use(buffer)) {
		pci_info(buffer->gpu->pdev, "is not removed before the last holder of its memory releases it\n");
		wait_event_idle(buffer->idle, !in_use(buffer));
	}
	if (buffer->vram.pages) {
		put_pieces(buffer);
		return;
	}
	hide(buffer);
	if (buffer->vram.window != PB_NOT_SHOWN)
		pb_window_free(buffer->gpu, buffer->vram.window, buffer->size);
	pb_window_free_vram(buffer->gpu, buffer->pieces[0].address, buffer->size);
}

static const struct pb_buffer_ops vram_ops = {
	.revoke = vram_revoke,
	.drop = vram_drop,
};

/* Allocates as one piece. */
static int alloc_whole(struct pb_gpu *gpu, struct pb_buffer *buffer, u64 size)
{
	struct pb_vram *vram = &buffer->vram;
	u64 address;
	void *start;
	int error;

	if (gpu->window) {
		vram->window = PB_NOT_SHOWN;
		error = pb_window_alloc_vram(gpu, size, &address);
		if (error)
			return error;
	} else {
		start = alloc_pages_aligned(gpu, size);
		if (!start)
			return -ENOMEM;
		address = vram_offset_of(gpu, start);
		vram->pages = start - address;
	}
	vram->mmap_offset = address;
	buffer->pieces[0] = (struct pb_piece){ 0, address, size };
	buffer->npieces = 1;
	return 0;
}

/*
 * Allocates with a piece for each page of the GPU, in descending order and with a free page after
 * each. Its mappings have offsets in the file behind those of VRAM.
 */
static int alloc_scattered(struct pb_gpu *gpu, struct pb_buffer *buffer, u64 size)
{
	struct pb_vram *vram = &buffer->vram;
	u64 offset, address;
	void *start;

	if (gpu->window)
		return -EOPNOTSUPP;
	start = alloc_pages_aligned(gpu, 2 * size);
	if (!start)
		return -ENOMEM;
	address = vram_offset_of(gpu, start);
	vram->pages = start - address;
	address += 2 * size;
	for (offset = 0; offset < size; offset += PB_GPU_PAGE) {
		address -= PB_GPU_PAGE;
		put_pages_from(vram->pages + address, PB_GPU_PAGE);
		address -= PB_GPU_PAGE;
		buffer->pieces[buffer->npieces++] =
			(struct pb_piece){ offset, address, PB_GPU_PAGE };
	}
	vram->mmap_offset = atomic64_fetch_add(size, &gpu->next_mmap_offset);
	return 0;
}

/*
 * Allocates a buffer of this many bytes, rounded up to whole pages of the GPU. It still contains
 * the data of its last owner.
 */
struct pb_buffer *pb_vram_create(struct pb_gpu *gpu, u64 size, bool scattered)
{
	struct pb_buffer *buffer;
	int error = -ENOMEM;

	if (!size)
		return ERR_PTR(-EINVAL);
	if (size > gpu->vram_size)
		return ERR_PTR(-ENOMEM);
	size = ALIGN(size, PB_GPU_PAGE);
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return ERR_PTR(-ENOMEM);
	buffer->pieces = kvmalloc_array(scattered ? size / PB_GPU_PAGE : 1, sizeof(*buffer->pieces),
					GFP_KERNEL_ACCOUNT);
	if (buffer->pieces)
		error = scattered ? alloc_scattered(gpu, buffer, size) :
				    alloc_whole(gpu, buffer, size);
	if (error) {
		kvfree(buffer->pieces);
		kfree(buffer);
		return ERR_PTR(error);
	}
	mutex_init(&buffer->vram.exports_lock);
	INIT_LIST_HEAD(&buffer->vram.exports);
	INIT_LIST_HEAD(&buffer->vram.pins);
	pb_buffer_init(buffer, gpu, &vram_ops, PEERBAR_GPU_SPACE_VRAM, size);
	return buffer;
}
