//! Blocks in memory, gone when the daemon ends.

use std::io;

use peerbar_dma::{MemoryError, MemoryFile};
use rustix::fs::FallocateFlags;

use super::{Backend, Straight};

/// A memory file, sparse until written.
pub(crate) struct RamBackend(MemoryFile);

impl RamBackend {
    /// `size` bytes, all zero.
    pub(crate) fn new(size: u64) -> Result<Self, MemoryError> {
        MemoryFile::create("peerbar-nvme-namespace", size).map(Self)
    }
}

impl Backend for RamBackend {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn straight(&self) -> Straight<'_> {
        Straight::Memory(&self.0)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, data).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8], _durable: bool) -> io::Result<()> {
        self.0.write(offset, data).map_err(io::Error::other)
    }

    fn zero(&self, offset: u64, len: u64, _deallocate: bool) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.0.file(), hole, offset, len)?)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
