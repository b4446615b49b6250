//! Blocks in memory, lost when the daemon ends.

use std::io;

use peerbar_dma::{MemoryError, PrivateMemory};

use super::backend::{Backend, DirectAccess};

/// Memory of the daemon, sparse until written.
pub(crate) struct RamBackend(PrivateMemory);

impl RamBackend {
    /// Makes `size` bytes, all zero.
    pub(crate) fn new(size: u64) -> Result<Self, MemoryError> {
        PrivateMemory::create(size).map(Self)
    }
}

impl Backend for RamBackend {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn direct(&self) -> DirectAccess<'_> {
        DirectAccess::Memory(&self.0)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, data).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data).map_err(io::Error::other)
    }

    fn zero(&self, (offset, len): (u64, u64), _deallocate: bool) -> io::Result<()> {
        self.0.zero(offset, len).map_err(io::Error::other)
    }
}
