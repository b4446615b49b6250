//! `gpu-refused`: transfers that the kernel refuses.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// The kernel has no route from the disk to the GPU's memory: transfers are refused with the reason, and all bounce where a
/// bounce is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRefused {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no peer to peer from {} to VRAM of {}",
            self.disk, self.gpu
        )
    }
}

impl CheckKind for GpuRefused {
    const KIND: &'static str = "gpu-refused";
    const ABOUT: &'static str = "The kernel has no route from the disk to the GPU's memory: transfers are refused with \
        the reason, and all bounce where a bounce is allowed.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
