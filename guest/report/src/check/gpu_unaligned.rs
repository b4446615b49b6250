//! `gpu-unaligned`: reads within blocks.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// A read into GPU memory that starts and ends within a block is refused with the reason. Where a bounce is allowed it is
/// done, and the bytes that bounce are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuUnaligned {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuUnaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unaligned reads of {} into VRAM of {}",
            self.disk, self.gpu
        )
    }
}

impl CheckKind for GpuUnaligned {
    const KIND: &'static str = "gpu-unaligned";
    const ABOUT: &'static str = "A read into GPU memory that starts and ends within a block is refused with the reason. \
        Where a bounce is allowed it is done, and the bytes that bounce are counted.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
