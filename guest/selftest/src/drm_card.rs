//! Graphics cards of the guest, such as virtio-gpu: their buffers, and dma-bufs of them (Linux,
//! include/uapi/drm/drm.h and include/uapi/drm/drm_mode.h).

#![expect(unsafe_code)]

use std::ffi::{OsStr, c_int};
use std::fs::{File, OpenOptions, read_dir};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;

use anyhow::{Context, bail};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// The folder where Linux has one file for each graphics card.
const NODES: &str = "/dev/dri";

/// A picture of this width has rows of 4 KiB.
const WIDTH: u32 = 1024;
const ROW: u64 = 4096;
const PIXEL_BITS: u32 = 32;

/// `DRM_IOCTL_VERSION`, of [`Version`].
const VERSION: Opcode = opcode::read_write::<Version>(b'd', 0);
/// `DRM_IOCTL_PRIME_HANDLE_TO_FD`, of [`PrimeHandle`].
const HANDLE_TO_FD: Opcode = opcode::read_write::<PrimeHandle>(b'd', 0x2d);
/// `DRM_IOCTL_PRIME_FD_TO_HANDLE`, of [`PrimeHandle`].
const FD_TO_HANDLE: Opcode = opcode::read_write::<PrimeHandle>(b'd', 0x2e);
/// `DRM_IOCTL_MODE_CREATE_DUMB`, of [`DumbBuffer`].
const CREATE_DUMB: Opcode = opcode::read_write::<DumbBuffer>(b'd', 0xb2);

/// `struct drm_version`. A text that is longer than its buffer is cut, but its length is that of
/// the whole text.
#[repr(C)]
struct Version {
    numbers: [c_int; 3],
    name_len: usize,
    name: *mut u8,
    date_len: usize,
    date: *mut u8,
    description_len: usize,
    description: *mut u8,
}

/// `struct drm_prime_handle`.
#[repr(C)]
struct PrimeHandle {
    handle: u32,
    flags: u32,
    fd: c_int,
}

/// `struct drm_mode_create_dumb`.
#[derive(Default)]
#[repr(C)]
struct DumbBuffer {
    height: u32,
    width: u32,
    bits_per_pixel: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

/// The card, opened. Closing it releases its handles of buffers, but no memory that a dma-buf still
/// refers to.
#[derive(Debug)]
pub(crate) struct Card(File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Card {
    /// Opens the card that has this driver.
    pub(crate) fn open(driver: &str) -> anyhow::Result<Self> {
        let cards = read_dir(NODES).with_context(|| format!("cannot list {NODES}"))?;
        for card in cards {
            let path = card?.path();
            if is_card(&path) {
                let file = OpenOptions::new().read(true).write(true).open(&path);
                let card = Card(file.with_context(|| format!("cannot open {}", path.display()))?);
                if card.has_driver(driver)? {
                    return Ok(card);
                }
            }
        }
        bail!("no card in {NODES} has the driver {driver}: is its module in the kernel?")
    }

    fn has_driver(&self, driver: &str) -> io::Result<bool> {
        let mut name = [0; 64];
        let mut version = Version {
            numbers: [0; 3],
            name_len: name.len(),
            name: name.as_mut_ptr(),
            date_len: 0,
            date: null_mut(),
            description_len: 0,
            description: null_mut(),
        };
        // SAFETY: the number names this structure, whose pointers have the lengths before them.
        let request = unsafe { Updater::<VERSION, Version>::new(&mut version) };
        // SAFETY: the kernel writes the structure and `name`, which outlive the call.
        unsafe { ioctl(&self.0, request) }?;
        Ok(name.get(..version.name_len) == Some(driver.as_bytes()))
    }

    /// Makes a buffer of `bytes` bytes, whole pages. Returns its handle, and a dma-buf of it. It is
    /// freed with the card or the dma-buf, whichever is closed last.
    pub(crate) fn make(&self, bytes: u64) -> anyhow::Result<(u32, OwnedFd)> {
        let mut buffer = DumbBuffer {
            height: u32::try_from(bytes / ROW)?,
            width: WIDTH,
            bits_per_pixel: PIXEL_BITS,
            ..DumbBuffer::default()
        };
        // SAFETY: the number names this structure, which is plain numbers.
        let request = unsafe { Updater::<CREATE_DUMB, DumbBuffer>::new(&mut buffer) };
        // SAFETY: the kernel accesses only the structure.
        unsafe { ioctl(&self.0, request) }.context("the card makes no buffer")?;
        let dma_buf = self.export(buffer.handle);
        Ok((
            buffer.handle,
            dma_buf.context("the card exports no dma-buf")?,
        ))
    }

    fn export(&self, handle: u32) -> anyhow::Result<OwnedFd> {
        let mut exported = PrimeHandle {
            handle,
            flags: u32::try_from(libc::O_CLOEXEC | libc::O_RDWR)?,
            fd: -1,
        };
        // SAFETY: the number names this structure, which is plain numbers.
        let request = unsafe { Updater::<HANDLE_TO_FD, PrimeHandle>::new(&mut exported) };
        // SAFETY: the kernel accesses only the structure.
        unsafe { ioctl(&self.0, request) }?;
        // SAFETY: the kernel has made it for the request that has just succeeded, so nothing else
        // owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(exported.fd) })
    }

    /// Makes another exporter's dma-buf a buffer of this card, until the card is closed.
    pub(crate) fn import(&self, dma_buf: impl AsFd) -> io::Result<()> {
        let mut imported = PrimeHandle {
            handle: 0,
            flags: 0,
            fd: dma_buf.as_fd().as_raw_fd(),
        };
        // SAFETY: the number names this structure, which is plain numbers.
        let request = unsafe { Updater::<FD_TO_HANDLE, PrimeHandle>::new(&mut imported) };
        // SAFETY: the kernel accesses only the structure, and takes its own reference to the
        // dma-buf.
        Ok(unsafe { ioctl(&self.0, request) }?)
    }
}

/// Returns `true` if a file there is a card's own, not one for rendering only, nor a directory of
/// links.
fn is_card(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("card"))
}
