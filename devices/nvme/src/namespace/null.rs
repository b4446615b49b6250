//! No blocks at all: what is left when the cost of storage is taken away.

use std::io;

use super::backend::{Backend, DirectAccess};

/// A size. What is written is forgotten; commands that read bring no data.
pub(crate) struct NullBackend(u64);

impl NullBackend {
    /// Nothing, of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        Self(size)
    }
}

impl Backend for NullBackend {
    fn size(&self) -> u64 {
        self.0
    }

    fn direct(&self) -> DirectAccess<'_> {
        DirectAccess::Nothing
    }

    fn read(&self, _offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        Ok(())
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, _range: (u64, u64), _deallocate: bool) -> io::Result<()> {
        Ok(())
    }
}
