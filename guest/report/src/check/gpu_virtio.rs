//! `gpu-virtio`: dma-bufs of virtio-gpu.

use super::{Keys, TableError, check};

check! {
    /// The GPU and the guest's virtio-gpu share memory with each other as dma-bufs, where the kernel permits it.
    "gpu-virtio": "{gpu} and dma-bufs of virtio-gpu"
    pub struct GpuVirtio {
        /// Name of a `[[gpu]]`.
        pub gpu: String = beside_virtio,
    }
}

fn beside_virtio(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    if keys.inventory.virtio_gpu {
        return keys.gpu_name(key);
    }
    let message = "the machine has no virtio-gpu: write `virtio-gpu = true` below [machine]";
    Err(keys.refused(message))
}
