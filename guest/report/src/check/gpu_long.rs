//! `gpu-long`: commands on much memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};
use crate::Size;

/// Most bytes that the GPU's driver moves with one command.
const LONGEST_COMMAND: u64 = 1 << 30;

/// Commands on more memory than the device takes at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLong {
    /// Name of a GPU with more than 1 GiB of memory.
    pub gpu: String,
}

impl fmt::Display for GpuLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commands of {} on more than 1 GiB", self.gpu)
    }
}

impl CheckKind for GpuLong {
    const KIND: &'static str = "gpu-long";
    const ABOUT: &'static str = "Commands on more memory than the device takes at once.";
    const KEYS: &'static [Key] = &[Key::required(
        "gpu",
        "Name of a `[[gpu]]` with a `vram` and an `aperture` of more than 1G.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu()?;
        if gpu.aperture_bytes > LONGEST_COMMAND {
            return Ok(Self {
                gpu: gpu.name.clone(),
            });
        }
        Err(keys.refused(format!(
            "the aperture of `{}` has {}: give it a `vram` and an `aperture` of more than {}",
            gpu.name,
            Size(gpu.aperture_bytes),
            Size(LONGEST_COMMAND)
        )))
    }
}
