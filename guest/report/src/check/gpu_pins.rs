//! `gpu-pins`: memory pinned by another driver.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// Another driver pins GPU memory, transfers between it and a disk, and loses it, in each order of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuPins {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuPins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {} pinned by another driver", self.gpu)
    }
}

impl CheckKind for GpuPins {
    const KIND: &'static str = "gpu-pins";
    const ABOUT: &'static str = "Another driver pins GPU memory, transfers between it and a disk, and loses it, in each \
        order of events.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }

    fn modules(&self) -> &'static [&'static str] {
        &["peerbar_gpu_pin_test"]
    }
}
