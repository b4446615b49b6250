//! `gpu-refused`: transfers that the kernel refuses.

use super::{Keys, Pair, check};

check! {
    /// Without a route in the kernel from the disk to the GPU's memory, transfers and mappings of
    /// dma-bufs must be refused with the reason, and all transfers must bounce if a bounce is
    /// allowed.
    "gpu-refused": "no peer to peer from {disk} to VRAM of {gpu}"
    pub struct GpuRefused {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }

    fn modules(&self) -> &'static [&'static str] {
        &["peerbar_gpu_import_test"]
    }
}
