//! `gpu-virtio`: dma-bufs of virtio-gpu.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The GPU and the guest's virtio-gpu share memory with each other as dma-bufs, where the kernel permits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuVirtio {
    /// A GPU's name.
    pub gpu: String,
}

impl fmt::Display for GpuVirtio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and dma-bufs of virtio-gpu", self.gpu)
    }
}

impl CheckKind for GpuVirtio {
    const KIND: &'static str = "gpu-virtio";
    const ABOUT: &'static str = "The GPU and the guest's virtio-gpu share memory with each other as dma-bufs, where the \
        kernel permits it.";
    const KEYS: &'static [Key] = &[Key::GPU];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        if !keys.inventory.virtio_gpu {
            let message =
                "the machine has no virtio-gpu: write `virtio-gpu = true` below [machine]";
            return Err(keys.refused(message));
        }
        Ok(Self {
            gpu: keys.gpu()?.name.clone(),
        })
    }
}
