//! `gpu-beyond-aperture`: VRAM that the aperture does not show.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};
use crate::Size;

/// VRAM that the aperture does not show is reached, through a window that is moved to it or by commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuBeyondAperture {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuBeyondAperture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VRAM of {} beyond its aperture", self.gpu)
    }
}

impl CheckKind for GpuBeyondAperture {
    const KIND: &'static str = "gpu-beyond-aperture";
    const ABOUT: &'static str = "VRAM that the aperture does not show is reached, through a window that is moved to it or \
        by commands.";
    const KEYS: &'static [Key] = &[Key::required(
        "gpu",
        "Name of a `[[gpu]]` whose `aperture` is smaller than its `vram`.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu()?;
        if gpu.vram_bytes > gpu.aperture_bytes {
            return Ok(Self {
                gpu: gpu.name.clone(),
            });
        }
        Err(keys.refused(format!(
            "the aperture of `{}` shows all of its VRAM, {}: give it a smaller `aperture`",
            gpu.name,
            Size(gpu.vram_bytes)
        )))
    }
}
