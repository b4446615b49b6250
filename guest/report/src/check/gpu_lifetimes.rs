//! `gpu-lifetimes`: processes that end early.

use super::{Keys, Pair, check};

check! {
    /// Processes that use the GPU while a disk writes to its memory are killed, pass descriptors on and close files
    /// early; nothing is lost.
    "gpu-lifetimes": "processes that use {gpu} end in any order"
    pub struct GpuLifetimes {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
