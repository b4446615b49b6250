//! Fences of the kernel's module vgem: a program makes one, and signals it at any time, or it
//! expires after 10 s (Linux, include/uapi/drm/vgem_drm.h and include/uapi/linux/dma-buf.h).

#![expect(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::Context;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

use crate::drm_card::Card;

/// The driver's own name.
const DRIVER: &str = "vgem";
/// Size of the buffer that a fence is made on, in bytes.
const BYTES: u64 = 4096;

/// `DRM_IOCTL_VGEM_FENCE_ATTACH`, of [`Attach`].
const ATTACH: Opcode = opcode::read_write::<Attach>(b'd', 0x41);
/// `DRM_IOCTL_VGEM_FENCE_SIGNAL`, of [`Signal`].
const SIGNAL: Opcode = opcode::write::<Signal>(b'd', 0x42);
/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE`, of [`SyncFile`].
const EXPORT_SYNC_FILE: Opcode = opcode::read_write::<SyncFile>(b'b', 2);
/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE`, of [`SyncFile`].
const IMPORT_SYNC_FILE: Opcode = opcode::write::<SyncFile>(b'b', 3);

/// `VGEM_FENCE_WRITE`.
const WRITE: u32 = 1;
/// `DMA_BUF_SYNC_WRITE`.
const SYNC_WRITE: u32 = 2;

/// `struct drm_vgem_fence_attach`.
#[derive(Default)]
#[repr(C)]
struct Attach {
    handle: u32,
    flags: u32,
    fence: u32,
    pad: u32,
}

/// `struct drm_vgem_fence_signal`.
#[repr(C)]
struct Signal {
    fence: u32,
    flags: u32,
}

/// `struct dma_buf_export_sync_file`, and `struct dma_buf_import_sync_file`, which is the same.
#[repr(C)]
struct SyncFile {
    flags: u32,
    fd: i32,
}

/// Opens the card of vgem.
pub(crate) fn open() -> anyhow::Result<Card> {
    Card::open(DRIVER)
}

/// A fence that is not signalled yet.
pub(crate) struct Fence<'a> {
    card: &'a Card,
    number: u32,
}

impl<'a> Fence<'a> {
    /// Makes a fence, and puts it on another exporter's dma-buf, like a device that writes there.
    pub(crate) fn on(card: &'a Card, dma_buf: &OwnedFd) -> anyhow::Result<Self> {
        let (handle, own) = card.make(BYTES)?;
        let mut attach = Attach {
            handle,
            flags: WRITE,
            ..Attach::default()
        };
        // SAFETY: the number names this structure, which is plain numbers.
        let request = unsafe { Updater::<ATTACH, Attach>::new(&mut attach) };
        // SAFETY: the kernel accesses only the structure.
        unsafe { ioctl(card, request) }.context("vgem makes no fence")?;
        let file = export(own.as_fd()).context("no sync file of vgem's dma-buf")?;
        import(dma_buf.as_fd(), &file).context("the dma-buf takes no fence")?;
        Ok(Self {
            card,
            number: attach.fence,
        })
    }

    /// Signals it.
    ///
    /// # Errors
    /// It has expired.
    pub(crate) fn signal(self) -> anyhow::Result<()> {
        let signal = Signal {
            fence: self.number,
            flags: 0,
        };
        // SAFETY: the number names this structure, which is plain numbers.
        let request = unsafe { Setter::<SIGNAL, Signal>::new(signal) };
        // SAFETY: the kernel only reads the structure.
        unsafe { ioctl(self.card, request) }.context("the fence was signalled before")
    }
}

/// Returns the fences of a dma-buf as a file.
fn export(dma_buf: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let mut file = SyncFile {
        flags: SYNC_WRITE,
        fd: -1,
    };
    // SAFETY: the number names this structure, which is plain numbers.
    let request = unsafe { Updater::<EXPORT_SYNC_FILE, SyncFile>::new(&mut file) };
    // SAFETY: the kernel accesses only the structure.
    unsafe { ioctl(dma_buf, request) }?;
    // SAFETY: the kernel has made it for the request that has just succeeded, so nothing else owns
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(file.fd) })
}

fn import(dma_buf: BorrowedFd<'_>, file: &OwnedFd) -> rustix::io::Result<()> {
    let file = SyncFile {
        flags: SYNC_WRITE,
        fd: file.as_raw_fd(),
    };
    // SAFETY: the number names this structure, which is plain numbers.
    let request = unsafe { Setter::<IMPORT_SYNC_FILE, SyncFile>::new(file) };
    // SAFETY: the kernel only reads the structure, and takes its own reference to the file.
    unsafe { ioctl(dma_buf, request) }
}
