//! Memory for direct I/O: the guest's own, or p2pmem.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use anyhow::{Context, bail, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapped span of memory, page-aligned, that nothing else in this process refers to.
#[derive(Debug)]
pub(crate) struct MappedBuffer {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and is as good in one thread as in another.
unsafe impl Send for MappedBuffer {}

impl MappedBuffer {
    /// `length` bytes of the guest's own memory, zeroed.
    pub(crate) fn guest_ram(length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                length,
                access,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        MappedBuffer::mapped(start, length)
    }

    /// `length` bytes out of a provider's pool: `file` is its `p2pmem/allocate`.
    pub(crate) fn p2pmem(file: &File, length: usize) -> io::Result<Self> {
        MappedBuffer::shared(file, 0, length)
    }

    /// `length` bytes at `offset` of a device's file, shared with its other mappings.
    pub(crate) fn shared(file: impl AsFd, offset: u64, length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above; and the driver keeps a buffer as long as it is mapped. A pool gives its pages to this mapping
        // alone, so no file can shrink under it.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        MappedBuffer::mapped(start, length)
    }

    fn mapped(start: *mut c_void, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedBuffer { start, length })
    }

    /// The first byte's place, for accesses of other widths.
    pub(crate) fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Reads `length` bytes of `file` at `offset` into the start of this memory, in one system call.
    pub(crate) fn read_from(
        &mut self,
        file: &File,
        offset: u64,
        length: usize,
    ) -> anyhow::Result<()> {
        self.check(length)?;
        let at = i64::try_from(offset).context("offset out of range")?;
        // SAFETY: the kernel writes at most `length` bytes, which `check` has found inside the mapping, and no
        // reference to them exists.
        let count = unsafe { libc::pread(file.as_raw_fd(), self.start.as_ptr(), length, at) };
        whole("read", count, length, offset)
    }

    /// Writes `length` bytes from the start of this memory to `file` at `offset`, in one system call.
    pub(crate) fn write_to(&self, file: &File, offset: u64, length: usize) -> anyhow::Result<()> {
        self.check(length)?;
        let at = i64::try_from(offset).context("offset out of range")?;
        // SAFETY: the kernel reads at most `length` bytes, which `check` has found inside the mapping.
        let count = unsafe { libc::pwrite(file.as_raw_fd(), self.start.as_ptr(), length, at) };
        whole("write", count, length, offset)
    }

    /// Copies the first `length` bytes out, by CPU.
    pub(crate) fn to_vec(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        self.check(length)?;
        let mut bytes = vec![0; length];
        // SAFETY: `check` has found the source inside the mapping; the destination is new and as long; no I/O is
        // under way, for every I/O on this memory is done when its system call returns.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().cast::<u8>(), bytes.as_mut_ptr(), length)
        };
        Ok(bytes)
    }

    /// Copies `bytes` to the start, by CPU.
    pub(crate) fn copy_in(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.check(bytes.len())?;
        // SAFETY: `check` has found the destination inside the mapping, to which no reference exists.
        unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.start.as_ptr().cast::<u8>(),
                bytes.len(),
            )
        };
        Ok(())
    }

    fn check(&self, length: usize) -> anyhow::Result<()> {
        ensure!(
            length <= self.length,
            "{length} bytes do not fit a buffer of {} bytes",
            self.length
        );
        Ok(())
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by this value, and this is its last user.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Takes anything but a whole transfer for a failure.
fn whole(what: &str, count: isize, length: usize, offset: u64) -> anyhow::Result<()> {
    match usize::try_from(count) {
        Ok(count) if count == length => Ok(()),
        Ok(count) => bail!("{what} of {length} bytes at offset {offset} moved only {count}"),
        Err(_) => Err(io::Error::last_os_error())
            .with_context(|| format!("{what} of {length} bytes at offset {offset} failed")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bytes_are_written_and_read_through_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut memory = MappedBuffer::guest_ram(4096).unwrap();
        memory.read_from(&file, 2, 4).unwrap();
        assert_eq!(memory.to_vec(4).unwrap(), b"2345");
        memory.copy_in(b"abcd").unwrap();
        memory.write_to(&file, 0, 4).unwrap();
        memory.read_from(&file, 0, 10).unwrap();
        assert_eq!(memory.to_vec(10).unwrap(), b"abcd456789");
    }

    #[test]
    fn a_short_transfer_and_a_long_one_are_failures() {
        let file = tempfile::tempfile().unwrap();
        let mut memory = MappedBuffer::guest_ram(4096).unwrap();
        let short = memory.read_from(&file, 0, 16).unwrap_err();
        assert_eq!(
            short.to_string(),
            "read of 16 bytes at offset 0 moved only 0"
        );
        let long = memory.write_to(&file, 0, 4097).unwrap_err();
        assert_eq!(
            long.to_string(),
            "4097 bytes do not fit a buffer of 4096 bytes"
        );
    }
}
