//! `gpu-unload`: a driver that is unloaded.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// The GPU's driver is unbound under load and bound again, then the GPU is removed and found again; the driver is unloaded
/// and loaded again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuUnload {
    /// A GPU's name.
    pub gpu: String,
    /// A disk's name.
    pub disk: String,
}

impl fmt::Display for GpuUnload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the driver of {} is unbound under load", self.gpu)
    }
}

impl CheckKind for GpuUnload {
    const KIND: &'static str = "gpu-unload";
    const ABOUT: &'static str = "The GPU's driver is unbound under load and bound again, then the GPU is removed and \
        found again; the driver is unloaded and loaded again.";
    const KEYS: &'static [Key] = &[Key::GPU, Key::DISK];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let (gpu, disk) = keys.gpu_with_p2pmem_and_disk()?;
        Ok(Self { gpu, disk })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }

    fn modules(&self) -> &'static [&'static str] {
        &["peerbar_gpu_pin_test"]
    }
}
