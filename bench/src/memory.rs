//! Memory that this process and a server share.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::Context;
use peerbar_nvme_driver::DmaMemory;
use rustix::fs::MemfdFlags;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Page size of the machine and of NVMe.
pub(crate) const PAGE: usize = 4096;

/// A shared memory file, mapped as a whole, with all pages present.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    region: MmapRegion,
}

impl SharedMemory {
    /// Makes a memory file of `bytes` bytes. Every page has been written, so that no measurement
    /// includes page faults.
    pub(crate) fn create(bytes: usize) -> anyhow::Result<(Self, File)> {
        let action = || format!("cannot create {bytes} bytes of shared memory");
        let fd = rustix::fs::memfd_create("peerbar-bench", MemfdFlags::CLOEXEC);
        let fd = fd.with_context(action)?;
        let size = u64::try_from(bytes).unwrap_or(u64::MAX);
        rustix::fs::ftruncate(&fd, size).with_context(action)?;
        let file = File::from(fd);
        let copy = file.try_clone().with_context(action)?;
        let memory = Self::map(FileOffset::new(copy, 0), bytes)?;
        for page in (0..bytes).step_by(PAGE) {
            memory.slice(page, size_of::<u64>())?.copy_from(&[0_u64]);
        }
        Ok((memory, file))
    }

    /// Maps a part of a file that another process lends.
    pub(crate) fn map(file: FileOffset, bytes: usize) -> anyhow::Result<Self> {
        let region = MmapRegion::from_file(file, bytes)
            .with_context(|| format!("cannot map {bytes} bytes"))?;
        Ok(Self { region })
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.region.size()
    }

    /// Returns `len` bytes at `offset`.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> anyhow::Result<VolatileSlice<'_>> {
        Ok(self.region.get_slice(offset, len)?)
    }

    /// Reads the 8 bytes at `offset`, a multiple of 8, with acquire ordering.
    pub(crate) fn load64(&self, offset: usize) -> anyhow::Result<u64> {
        let word = self.region.get_atomic_ref::<AtomicU64>(offset)?;
        Ok(u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes the 8 bytes at `offset`, a multiple of 8, with release ordering.
    pub(crate) fn store64(&self, offset: usize, value: u64) -> anyhow::Result<()> {
        let word = self.region.get_atomic_ref::<AtomicU64>(offset)?;
        word.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Reads the 4 bytes at `offset`, a multiple of 4, with acquire ordering.
    pub(crate) fn load32(&self, offset: usize) -> anyhow::Result<u32> {
        let word = self.region.get_atomic_ref::<AtomicU32>(offset)?;
        Ok(u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4, with release ordering.
    pub(crate) fn store32(&self, offset: usize, value: u32) -> anyhow::Result<()> {
        let word = self.region.get_atomic_ref::<AtomicU32>(offset)?;
        word.store(value.to_le(), Ordering::Release);
        Ok(())
    }
}

/// Shared memory at its bus address.
#[derive(Clone, Debug)]
pub(crate) struct BusMemory {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) address: u64,
}

impl BusMemory {
    /// Returns the offset of `address`, or one beyond the memory if it is elsewhere.
    fn offset(&self, address: u64) -> usize {
        usize::try_from(address.wrapping_sub(self.address)).unwrap_or(usize::MAX)
    }

    fn slice(&self, address: u64, len: usize) -> io::Result<VolatileSlice<'_>> {
        let slice = self.memory.slice(self.offset(address), len);
        slice.map_err(io::Error::other)
    }
}

impl DmaMemory for BusMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.slice(address, data.len())?.copy_to(data);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.slice(address, data.len())?.copy_from(data);
        Ok(())
    }

    fn load32(&self, address: u64) -> io::Result<u32> {
        let word = self.memory.load32(self.offset(address));
        word.map_err(io::Error::other)
    }

    fn store32(&self, address: u64, value: u32) -> io::Result<()> {
        let stored = self.memory.store32(self.offset(address), value);
        stored.map_err(io::Error::other)
    }

    fn load64(&self, address: u64) -> io::Result<u64> {
        let word = self.memory.load64(self.offset(address));
        word.map_err(io::Error::other)
    }
}

/// Allocates the pages of a memory in order. None is freed.
#[derive(Debug)]
pub(crate) struct Pages {
    next: Cell<usize>,
    all: usize,
}

impl Pages {
    /// Returns the pages of a memory of `all` bytes.
    pub(crate) fn new(all: usize) -> Self {
        Self {
            next: Cell::new(0),
            all,
        }
    }

    /// Returns the offset of the next free `bytes` bytes, at the start of a page.
    pub(crate) fn take(&self, bytes: usize) -> anyhow::Result<usize> {
        let offset = self.next.get();
        let all = self.all;
        let end = offset
            .checked_add(bytes.next_multiple_of(PAGE))
            .filter(|end| *end <= all);
        let full = || format!("{bytes} bytes are not left of {all} bytes of shared memory");
        self.next.set(end.with_context(full)?);
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_where_they_were_put() {
        let (memory, _) = SharedMemory::create(2 * PAGE).unwrap();
        memory.store64(8, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(memory.load32(8).unwrap(), 0x5566_7788);
        memory.store32(12, 1).unwrap();
        assert_eq!(memory.load64(8).unwrap(), 0x1_5566_7788);
        assert!(memory.load64(2 * PAGE).is_err());
    }

    #[test]
    fn pages_are_given_once_and_come_to_an_end() {
        let pages = Pages::new(3 * PAGE);
        assert_eq!(pages.take(1).unwrap(), 0);
        assert_eq!(pages.take(PAGE + 1).unwrap(), PAGE);
        let error = pages.take(1).unwrap_err().to_string();
        assert_eq!(
            error,
            "1 bytes are not left of 12288 bytes of shared memory"
        );
    }
}
