//! A provider's pool of peer-to-peer memory, as sysfs shows it (Linux, Documentation/ABI/testing/sysfs-bus-pci).

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::disk::read_number;
use crate::mapped_buffer::MappedBuffer;

/// The `p2pmem` directory of a PCI device.
#[derive(Clone, Debug)]
pub struct Pool {
    directory: PathBuf,
}

/// The state of the pool in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pmemState {
    /// Total size in bytes.
    pub size: u64,
    /// Free bytes.
    pub available: u64,
    /// `true` if other drivers may find it.
    pub(crate) published: bool,
}

impl Pool {
    /// Returns the pool of the PCI device whose directory in sysfs is `pci`.
    pub fn of(pci: &Path) -> Self {
        Pool {
            directory: pci.join("p2pmem"),
        }
    }

    /// Returns the file to map memory from.
    pub(crate) fn allocate_file(&self) -> PathBuf {
        self.directory.join("allocate")
    }

    /// Reads its state from sysfs.
    pub fn state(&self) -> anyhow::Result<P2pmemState> {
        if !self.directory.exists() {
            bail!(
                "{} is missing: the kernel took no CMB as p2pmem. It needs CONFIG_PCI_P2PDMA=y, CAP.CMBS set, CMBSZ with \
                 RDS and WDS, and a BAR whose start and size are multiples of 2 MiB; the nvme driver ignores any other \
                 CMB silently",
                self.directory.display()
            );
        }
        Ok(P2pmemState {
            size: read_number(&self.directory.join("size"))?,
            available: read_number(&self.directory.join("available"))?,
            published: read_number(&self.directory.join("published"))? == 1,
        })
    }

    /// Opens the file to map memory from.
    pub fn open(&self) -> anyhow::Result<File> {
        let path = self.allocate_file();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Allocates `length` bytes of the pool.
    pub(crate) fn map(&self, length: usize) -> anyhow::Result<MappedBuffer> {
        MappedBuffer::shared(&self.open()?, 0, length).with_context(|| {
            let available = self.state().map_or_else(
                |error| error.to_string(),
                |state| state.available.to_string(),
            );
            format!(
                "cannot map {length} bytes of {} (available: {available})",
                self.allocate_file().display()
            )
        })
    }
}
