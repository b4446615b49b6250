//! `gpu-batch`: batches of transfers.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// Batches and queues of reads and writes between a disk and GPU memory: each entry has its own outcome, independent of the
/// others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuBatch {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batches between {} and VRAM of {}", self.disk, self.gpu)
    }
}

impl CheckKind for GpuBatch {
    const KIND: &'static str = "gpu-batch";
    const ABOUT: &'static str = "Batches and queues of reads and writes between a disk and GPU memory: each entry has its \
        own outcome, independent of the others.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_with_p2pmem_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
