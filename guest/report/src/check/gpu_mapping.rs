//! `gpu-mapping`: GPU memory mapped into a program.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The processor loads from GPU memory and stores to it through mappings, which outlive the buffers and files that they come
/// from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuMapping {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VRAM of {} through mappings", self.gpu)
    }
}

impl CheckKind for GpuMapping {
    const KIND: &'static str = "gpu-mapping";
    const ABOUT: &'static str = "The processor loads from GPU memory and stores to it through mappings, which outlive the \
        buffers and files that they come from.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
