//! `gpu-owners`: memory that changes its owner.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// GPU memory that is allocated again is all zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuOwners {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {} is zeroed for a new owner", self.gpu)
    }
}

impl CheckKind for GpuOwners {
    const KIND: &'static str = "gpu-owners";
    const ABOUT: &'static str = "GPU memory that is allocated again is all zeros.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
