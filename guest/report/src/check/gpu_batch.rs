//! `gpu-batch`: batches of transfers.

use super::{Keys, Pair, check};

check! {
    /// Batches and queues of reads and writes between a disk and GPU memory: each entry has its own outcome,
    /// independent of the others.
    "gpu-batch": "batches between {disk} and VRAM of {gpu}"
    pub struct GpuBatch {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
