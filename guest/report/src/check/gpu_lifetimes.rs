//! `gpu-lifetimes`: processes that end early.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// Processes that use the GPU while a disk writes to its memory are killed, pass descriptors on and close files early;
/// nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLifetimes {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuLifetimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "processes that use {} end in any order", self.gpu)
    }
}

impl CheckKind for GpuLifetimes {
    const KIND: &'static str = "gpu-lifetimes";
    const ABOUT: &'static str = "Processes that use the GPU while a disk writes to its memory are killed, pass \
        descriptors on and close files early; nothing is lost.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_with_p2pmem_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
