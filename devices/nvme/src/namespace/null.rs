//! A namespace without storage, to measure everything else.

use std::io;

use super::backend::{Backend, DirectAccess};

/// A size. Writes are dropped, and reads transfer no data.
pub(crate) struct NullBackend(u64);

impl NullBackend {
    /// Makes a namespace of `size` bytes without storage.
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
