//! Memory that a test and devices share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use peerbar_nvme_driver::DmaMemory;
use rustix::fs::{MemfdFlags, SealFlags};

/// Returns a zeroed memory file of `bytes` bytes with these seals.
pub fn memory_file(bytes: u64, seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("guest", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd.into()
}

/// A shared memory file, or the end of one, at its bus address.
#[derive(Clone, Debug)]
pub struct GuestRam {
    /// The file.
    pub file: Arc<File>,
    /// Offset of its first byte in the file.
    offset: u64,
    /// The bus address of that byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl GuestRam {
    /// Makes a zeroed memory of `bytes` bytes that cannot shrink, as QEMU does.
    pub fn new(address: u64, bytes: u64) -> Self {
        Self::from_file(memory_file(bytes, SealFlags::SHRINK), 0, address, bytes)
    }

    /// Takes `bytes` bytes of a file, such as a server lends, from `offset` on.
    pub fn from_file(file: File, offset: u64, address: u64, bytes: u64) -> Self {
        Self {
            file: Arc::new(file),
            offset,
            address,
            bytes,
        }
    }

    /// Returns `true` if the byte at `address` is in this memory.
    pub fn contains(&self, address: u64) -> bool {
        let inside = address.checked_sub(self.address);
        inside.is_some_and(|inside| inside < self.bytes)
    }

    /// Returns `bytes` bytes at `address`.
    pub fn bytes_at(&self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; bytes];
        self.read(address, &mut data)?;
        Ok(data)
    }

    /// Writes bytes at `address`.
    #[track_caller]
    pub fn store(&self, address: u64, data: &[u8]) {
        self.write(address, data).unwrap();
    }

    /// Returns `bytes` bytes at `address`, which must be in this memory.
    #[track_caller]
    pub fn load(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.bytes_at(address, bytes).unwrap()
    }

    fn file_offset(&self, address: u64) -> io::Result<u64> {
        let inside = address.checked_sub(self.address);
        let inside = inside.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(inside + self.offset)
    }
}

impl DmaMemory for GuestRam {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(data, self.file_offset(address)?)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.file_offset(address)?)
    }
}
