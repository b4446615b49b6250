//! `gpu-unload`: a driver that is unloaded.

use super::{Keys, Pair, check};

check! {
    /// The GPU's driver is unbound under load and bound again, then the GPU is removed and found again; the driver is
    /// unloaded and loaded again.
    "gpu-unload": "the driver of {gpu} is unbound under load"
    pub struct GpuUnload {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_with_p2pmem,
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
