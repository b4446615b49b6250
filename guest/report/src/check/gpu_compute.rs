//! `gpu-compute`: kernels on data of a disk.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, Pair, TableError};

/// Two vectors are read from a disk, go through every kernel of the GPU in launches of many shapes, and the results are
/// written to a disk: no byte of them is in guest RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCompute {
    /// A GPU's name.
    pub gpu: String,
    /// The disk that is read.
    pub from: String,
    /// The disk that is written.
    pub to: String,
}

impl fmt::Display for GpuCompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} to VRAM of {}, every kernel, to {}",
            self.from, self.gpu, self.to
        )
    }
}

impl CheckKind for GpuCompute {
    const KIND: &'static str = "gpu-compute";
    const ABOUT: &'static str = "Two vectors are read from a disk, go through every kernel of the GPU in launches of many \
        shapes, and the results are written to a disk: no byte of them is in guest RAM.";
    const KEYS: &'static [Key] = &[
        Key::GPU,
        Key::required("from", "Name of the `[[nvme]]` that is read."),
        Key::required("to", "Name of the `[[nvme]]` that is written."),
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
            from: keys.disk("from")?.name.clone(),
            to: keys.disk("to")?.name.clone(),
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![
            Pair::of(&self.gpu, &self.from),
            Pair::of(&self.gpu, &self.to),
        ]
    }
}
