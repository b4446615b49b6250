//! `gpu-reset`: a reset under load.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The GPU is reset under load: no command and no contents are lost, except a command that cannot be repeated, which is
/// reported as lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReset {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is reset under load", self.gpu)
    }
}

impl CheckKind for GpuReset {
    const KIND: &'static str = "gpu-reset";
    const ABOUT: &'static str = "The GPU is reset under load: no command and no contents are lost, except a command that \
        cannot be repeated, which is reported as lost.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
