//! Registers of a GPU, accessed without its driver (devices/gpu/INTERFACE.md).

#![expect(unsafe_code)]

use std::fs::OpenOptions;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, ensure};
use peerbar_dma_log::MAX_SIZE;

use crate::mapped_buffer::MappedBuffer;

/// Size of BAR 0 in bytes.
const BAR: usize = 64 << 10;
/// Writing 1 takes a new snapshot of the counters.
const SNAPSHOT: usize = 0x50;
/// Offset of the snapshot.
const DMA_LOG: usize = 0xc000;
/// Size of the log's head, and of each entry after it, in bytes.
const HEAD: usize = 64;
const ENTRY: usize = 32;
/// Offset in the head of the number of entries.
const COUNT: usize = 12;

/// BAR 0 of a GPU, mapped.
#[derive(Debug)]
pub struct Registers {
    memory: MappedBuffer,
}

impl Registers {
    /// Maps the registers of the PCI device whose directory in sysfs is `pci`.
    pub fn map(pci: &Path) -> anyhow::Result<Self> {
        let path = pci.join("resource0");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        ensure!(
            bytes == BAR as u64,
            "BAR 0 has {bytes} bytes where a peerbar GPU has {BAR}"
        );
        let memory = MappedBuffer::shared(&file, 0, BAR).with_context(|| {
            format!(
                "cannot map {}; it requires the kernel parameter iomem=relaxed",
                path.display()
            )
        })?;
        Ok(Registers { memory })
    }

    /// Returns the present DMA counters.
    pub(crate) fn dma_log(&self) -> anyhow::Result<Vec<u8>> {
        self.write(SNAPSHOT, 1)?;
        let mut page = Vec::new();
        self.copy(&mut page, HEAD)?;
        let count: [u8; 4] = page
            .get(COUNT..COUNT + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .context("a log without a head")?;
        let entries = usize::try_from(u32::from_le_bytes(count))?.saturating_mul(ENTRY);
        self.copy(&mut page, entries.min(MAX_SIZE.saturating_sub(HEAD)))?;
        Ok(page)
    }

    /// Appends the `length` bytes of the log that follow those in `page`.
    fn copy(&self, page: &mut Vec<u8>, length: usize) -> anyhow::Result<()> {
        for _ in 0..length / 8 {
            let word = self.read(DMA_LOG.saturating_add(page.len()))?;
            page.extend(word.to_le_bytes());
        }
        Ok(())
    }

    /// Reads the 8 bytes at `offset`, a multiple of 8.
    pub fn read(&self, offset: usize) -> anyhow::Result<u64> {
        let register = self.register::<u64>(offset)?;
        // SAFETY: `register` has found it inside the mapping, at its alignment.
        Ok(u64::from_le(unsafe { register.as_ptr().read_volatile() }))
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4.
    pub fn write(&self, offset: usize, value: u32) -> anyhow::Result<()> {
        let register = self.register::<u32>(offset)?;
        // SAFETY: as for `read`.
        unsafe { register.as_ptr().write_volatile(value.to_le()) };
        Ok(())
    }

    fn register<T>(&self, offset: usize) -> anyhow::Result<NonNull<T>> {
        ensure!(offset % size_of::<T>() == 0, "no register at {offset:#x}");
        let address = self.memory.address(offset, size_of::<T>());
        let address = address.with_context(|| format!("no register at {offset:#x}"))?;
        Ok(address.cast())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use peerbar_dma_log::{Completer, Direction, Entry, Purpose, Route, encode, parse};

    use super::*;

    #[test]
    fn log_is_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(directory.path().join("resource0")).unwrap();
        file.set_len(BAR as u64).unwrap();
        let entry = Entry {
            purpose: Purpose::Payload,
            route: Route::Upstream,
            completer: Completer::PeerBar,
            direction: Direction::Read,
            requests: 3,
            bytes: 4096,
            failures: 0,
        };
        file.write_all_at(&encode([entry]), DMA_LOG as u64).unwrap();
        let page = Registers::map(directory.path()).unwrap().dma_log().unwrap();
        assert_eq!(page.len(), HEAD + ENTRY);
        assert_eq!(parse(&page).unwrap(), [entry]);
        let mut snapshot = [0; 4];
        let written = std::fs::File::open(directory.path().join("resource0")).unwrap();
        written
            .read_exact_at(&mut snapshot, SNAPSHOT as u64)
            .unwrap();
        assert_eq!(snapshot, [1, 0, 0, 0]);
    }

    #[test]
    fn another_device_s_bar_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("resource0"), [0; 4096]).unwrap();
        let error = Registers::map(directory.path()).unwrap_err().to_string();
        assert_eq!(error, "BAR 0 has 4096 bytes where a peerbar GPU has 65536");
    }
}
