//! The storage of a namespace's blocks.

use std::io;

use peerbar_dma::MappedMemory;
use peerbar_file_ring::RingFile;

/// The ways in which data may go between a backend and a command's memory without the controller's
/// own buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DirectAccess<'a> {
    /// By a copy between two memories. The backend's memory starts at offset 0 of this one.
    Memory(&'a MappedMemory),
    /// There is no data to move.
    Nothing,
    /// By the kernel between memory and this file, from offset 0 on.
    File(&'a RingFile),
}

/// The storage of a namespace's blocks. Offsets and lengths are bytes inside [`Backend::size`].
pub(crate) trait Backend: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// The direct path for data.
    fn direct(&self) -> DirectAccess<'_>;
    /// Fills `data` from `offset` on.
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;
    /// Stores `data` from `offset` on.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes a range, an offset and a length, read as zero; with `deallocate`, also frees its
    /// storage.
    fn zero(&self, range: (u64, u64), deallocate: bool) -> io::Result<()>;
    /// Brings every completed write to stable storage, if the backend has any.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A range of a namespace in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}
