//! `gpu-faults`: channels that fail alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// A program and a driver that misbehave, each on its own channel, get an error, an interrupt and a record; other channels
/// go on. Not behind an IOMMU, whose driver would complain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFaults {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} isolates channels that misbehave", self.gpu)
    }
}

impl CheckKind for GpuFaults {
    const KIND: &'static str = "gpu-faults";
    const ABOUT: &'static str = "A program and a driver that misbehave, each on its own channel, get an error, an \
        interrupt and a record; other channels go on. Not behind an IOMMU, whose driver would complain.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
