//! A block device, opened for direct I/O.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::mapped_buffer::MappedBuffer;
use peerbar_pattern::Pattern;

/// A namespace's block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `/dev/nvme0n1`.
    pub node: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block size in bytes.
    pub block: u64,
}

impl Disk {
    /// Reads the attributes in sysfs of the disk named `name`.
    pub fn read(sys: &Path, dev: &Path, name: &str) -> anyhow::Result<Self> {
        let entry = sys.join("block").join(name);
        let sectors = read_number(&entry.join("size"))?;
        let disk = Disk {
            node: dev.join(name),
            // Linux, Documentation/ABI/stable/sysfs-block: always in units of 512 bytes.
            bytes: sectors.saturating_mul(512),
            block: read_number(&entry.join("queue/logical_block_size"))?,
        };
        ensure!(
            disk.node.exists(),
            "the disk {name} has no {} yet",
            disk.node.display()
        );
        ensure!(disk.bytes > 0, "the disk {name} has size 0");
        Ok(disk)
    }

    /// Opens it without the page cache.
    pub fn open_direct(&self) -> anyhow::Result<File> {
        self.open(libc::O_DIRECT)
    }

    /// Opens it through the page cache.
    pub(crate) fn open_buffered(&self) -> anyhow::Result<File> {
        self.open(0)
    }

    fn open(&self, flags: i32) -> anyhow::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&self.node)
            .with_context(|| format!("cannot open {}", self.node.display()))
    }

    /// Fails if the disk cannot do this transfer.
    pub fn check(&self, offset: u64, length: u64) -> anyhow::Result<()> {
        let node = self.node.display();
        ensure!(
            offset % self.block == 0 && length % self.block == 0 && length > 0,
            "{length} bytes at offset {offset} are not whole blocks of {} bytes of {node}",
            self.block
        );
        let end = offset.saturating_add(length);
        ensure!(
            end <= self.bytes,
            "the check needs {end} bytes of {node}, which has {}; give it a larger disk",
            self.bytes
        );
        Ok(())
    }
}

/// Writes `pattern` to `length` bytes at `offset` without the page cache, and flushes.
pub fn fill(disk: &File, pattern: Pattern, offset: u64, length: usize) -> anyhow::Result<()> {
    store(disk, &pattern.bytes(offset, length), offset)
}

/// Writes `bytes` at `offset` without the page cache, and flushes.
pub fn store(disk: &File, bytes: &[u8], offset: u64) -> anyhow::Result<()> {
    let mut memory =
        MappedBuffer::guest_ram(bytes.len()).context("cannot get memory to write from")?;
    memory.copy_in(bytes)?;
    memory.write_to(disk, offset, bytes.len())?;
    disk.sync_data().context("cannot flush the disk")
}

/// Reads `length` bytes at `offset` without the page cache.
pub fn read(disk: &File, offset: u64, length: usize) -> anyhow::Result<Vec<u8>> {
    let mut memory = MappedBuffer::guest_ram(length).context("cannot get memory to read into")?;
    memory.read_from(disk, offset, length)?;
    memory.to_vec(length)
}

/// Reads a file of sysfs that holds one decimal number.
pub(crate) fn read_number(path: &Path) -> anyhow::Result<u64> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} holds {:?}, not a number", path.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_must_fit_the_disk() {
        let disk = Disk {
            node: "/dev/nvme0n1".into(),
            bytes: 1 << 20,
            block: 4096,
        };
        disk.check(0, 1 << 20).unwrap();
        let odd = disk.check(512, 4096).unwrap_err().to_string();
        assert_eq!(
            odd,
            "4096 bytes at offset 512 are not whole blocks of 4096 bytes of /dev/nvme0n1"
        );
        let long = disk.check(4096, 1 << 20).unwrap_err().to_string();
        assert!(
            long.contains("needs 1052672 bytes of /dev/nvme0n1, which has 1048576"),
            "{long}"
        );
        assert!(disk.check(u64::MAX - 4095, 4096).is_err());
    }
}
