//! `gpu-unaligned`: reads within blocks.

use super::{Keys, Pair, check};

check! {
    /// A read into GPU memory that starts and ends within a block is refused with the reason. Where a bounce is allowed
    /// it is done, and the bytes that bounce are counted.
    "gpu-unaligned": "unaligned reads of {disk} into VRAM of {gpu}"
    pub struct GpuUnaligned {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.disk)]
    }
}
