//! Memory that a test and devices share, and the numbered content of blocks in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use peerbar_nvme_driver::DmaMemory;
use rustix::fs::MemfdFlags;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A shared memory file at its bus address.
#[derive(Clone, Debug)]
pub(crate) struct BusMemory {
    pub(crate) file: Arc<File>,
    /// Offset of its first byte in the file.
    offset: u64,
    pub(crate) address: u64,
}

impl BusMemory {
    /// Makes a memory of `bytes` bytes.
    pub(crate) fn create(address: u64, bytes: u64) -> anyhow::Result<Self> {
        let file = rustix::fs::memfd_create("peerbar-tests", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes)?;
        Ok(Self {
            file: Arc::new(file.into()),
            offset: 0,
            address,
        })
    }

    /// Takes a file that a server lends, from `offset` on.
    pub(crate) fn lent(file: File, offset: u64, address: u64) -> Self {
        Self {
            file: Arc::new(file),
            offset,
            address,
        }
    }

    fn file_offset(&self, address: u64) -> io::Result<u64> {
        let inside = address.checked_sub(self.address);
        let inside = inside.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(inside + self.offset)
    }

    /// Returns `bytes` bytes at `address`.
    pub(crate) fn bytes(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; bytes];
        self.read(address, &mut data)?;
        Ok(data)
    }
}

impl DmaMemory for BusMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(data, self.file_offset(address)?)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.file_offset(address)?)
    }
}

/// Returns the content of a block that is written as number `stamp`: no two words in it are the
/// same, nor those of two stamps.
pub(crate) fn block(stamp: u64) -> Vec<u8> {
    let first = stamp << 16;
    let words = first..first + BLOCK as u64 / 8;
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns the stamp of a block, or `None` if its content is not that of any.
pub(crate) fn stamp(content: &[u8]) -> Option<u64> {
    let first = content.first_chunk().copied().map(u64::from_le_bytes)?;
    let stamp = first >> 16;
    let is_zeroed = content.iter().all(|byte| *byte == 0);
    (is_zeroed || content == block(stamp)).then_some(stamp)
}

#[test]
fn mix_of_two_blocks_has_no_stamp() {
    let mixed = [&block(7)[..2048], &block(8)[2048..]].concat();
    assert_eq!(stamp(&block(7)), Some(7));
    assert_eq!(stamp(&[0; BLOCK]), Some(0));
    assert_eq!(stamp(&mixed), None);
}
