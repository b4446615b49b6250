//! `gpu-lost`: a server that dies.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The server behind the GPU is killed while a disk writes to its memory: programs get errors, nothing hangs, the disk still
/// works. It must be the last check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLost {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is removed by surprise", self.gpu)
    }
}

impl CheckKind for GpuLost {
    const KIND: &'static str = "gpu-lost";
    const ABOUT: &'static str = "The server behind the GPU is killed while a disk writes to its memory: programs get \
        errors, nothing hangs, the disk still works. It must be the last check.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];
    const LAST: Option<&'static str> =
        Some("nothing is left to check once a GPU is lost: move this check to the end");

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_with_p2pmem_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn kills(&self) -> Option<&str> {
        Some(&self.gpu)
    }
}
