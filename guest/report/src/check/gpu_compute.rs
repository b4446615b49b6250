//! `gpu-compute`: kernels on data of a disk.

use super::{Keys, Pair, check};

check! {
    /// Two vectors are read from a disk, go through every kernel of the GPU in launches of many shapes, and the results
    /// are written to a disk: no byte of them is in guest RAM.
    "gpu-compute": "{from} to VRAM of {gpu}, every kernel, to {to}"
    pub struct GpuCompute {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of the `[[nvme]]` that is read.
        pub from: String = Keys::disk_name,
        /// Name of the `[[nvme]]` that is written.
        pub to: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        [&self.from, &self.to].map(|disk| Pair::of(&self.gpu, disk)).to_vec()
    }
}
