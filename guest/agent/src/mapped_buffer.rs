//! Memory for direct I/O: the guest's own, or p2pmem.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use anyhow::{Context, bail};
use peerbar_gds::Mapping;

/// Memory that the kernel reads files into and writes files from.
#[derive(Debug)]
pub struct MappedBuffer(Mapping);

impl MappedBuffer {
    /// Allocates guest RAM.
    pub fn guest_ram(length: usize) -> io::Result<Self> {
        Mapping::private(length as u64).map(Self)
    }

    /// Maps a part of a file, such as a device's memory.
    pub fn shared(file: impl AsFd, offset: u64, length: usize) -> io::Result<Self> {
        Mapping::of_file(file, offset, length as u64).map(Self)
    }

    /// Returns the address of its bytes from `offset` on.
    pub fn address(&self, offset: usize, length: usize) -> io::Result<NonNull<u8>> {
        let end = offset.saturating_add(length) as u64;
        Ok(self.0.pointer(offset as u64..end)?.0)
    }

    /// Reads `length` bytes of a file into its start by one call.
    pub fn read_from(&mut self, file: &File, offset: u64, length: usize) -> anyhow::Result<()> {
        let count = self.0.read_file(0..length as u64, file, offset);
        whole("read", count, length, offset)
    }

    /// Writes its first `length` bytes to a file by one call.
    pub fn write_to(&self, file: &File, offset: u64, length: usize) -> anyhow::Result<()> {
        let count = self.0.write_file(0..length as u64, file, offset);
        whole("write", count, length, offset)
    }

    /// Copies its first `length` bytes.
    pub fn to_vec(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies `bytes` to its start.
    pub fn copy_in(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write(0, bytes)?)
    }
}

/// Fails if a transfer moved less than all.
fn whole(what: &str, count: io::Result<u64>, length: usize, offset: u64) -> anyhow::Result<()> {
    match count {
        Ok(count) if count == length as u64 => Ok(()),
        Ok(count) => bail!("{what} of {length} bytes at offset {offset} moved only {count}"),
        Err(error) => Err(error)
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
        let reason = "bytes 0 to 4097 are not within a buffer of 4096 bytes";
        assert!(format!("{long:#}").ends_with(reason), "{long:#}");
    }
}
