//! Memory of a program as a dma-buf (Linux, include/uapi/linux/udmabuf.h).

#![expect(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::Context;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const NODE: &str = "/dev/udmabuf";

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: libc::c_ulong = 0x4018_7542;

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
#[derive(Debug)]
struct Create {
    memfd: i32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// Makes a memory file of `bytes` bytes, whole pages, and a dma-buf of it.
pub(crate) fn create(bytes: u64) -> anyhow::Result<(File, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("udmabuf", flags).map_err(io::Error::from)?;
    ftruncate(&file, bytes).map_err(io::Error::from)?;
    // The kernel must be sure of the pages.
    fcntl_add_seals(&file, SealFlags::SHRINK).map_err(io::Error::from)?;
    let node = OpenOptions::new().read(true).write(true).open(NODE);
    let node = node.with_context(|| format!("cannot open {NODE}; it requires CONFIG_UDMABUF"))?;
    let request = Create {
        memfd: file.as_raw_fd(),
        flags: CLOEXEC,
        offset: 0,
        size: bytes,
    };
    // SAFETY: the number names this structure, which the kernel only reads.
    let made = unsafe { libc::ioctl(node.as_raw_fd(), CREATE, &raw const request) };
    if made < 0 {
        return Err(io::Error::last_os_error()).context("the kernel makes no dma-buf of memory");
    }
    // SAFETY: the kernel has made it for the request that has just succeeded, so nothing else owns
    // it.
    let dma_buf = unsafe { OwnedFd::from_raw_fd(made) };
    Ok((File::from(file), dma_buf))
}
