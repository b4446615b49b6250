//! `gpu-pins`: memory pinned by another driver.

use super::{Keys, Pair, check};

check! {
    /// Another driver pins GPU memory, transfers between it and a disk, and loses it, in each order of events.
    "gpu-pins": "memory of {gpu} pinned by another driver"
    pub struct GpuPins {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }

    fn modules(&self) -> &'static [&'static str] {
        &["peerbar_gpu_pin_test"]
    }
}
