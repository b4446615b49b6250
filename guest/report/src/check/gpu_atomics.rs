//! `gpu-atomics`: atomic operations.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// All threads of a launch add to one counter in guest RAM, and no addition is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuAtomics {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuAtomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "atomic adds of {} to guest RAM", self.gpu)
    }
}

impl CheckKind for GpuAtomics {
    const KIND: &'static str = "gpu-atomics";
    const ABOUT: &'static str =
        "All threads of a launch add to one counter in guest RAM, and no addition is lost.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
