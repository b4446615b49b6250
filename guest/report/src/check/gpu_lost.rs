//! `gpu-lost`: a server that dies.

use super::{Keys, check};

check! {
    /// The server behind the GPU is killed while a disk writes to its memory: programs get errors, nothing hangs, the
    /// disk still works. It must be the last check.
    "gpu-lost": "{gpu} is removed by surprise"
    pub struct GpuLost {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// Name of an `[[nvme]]`.
        pub disk: String = Keys::disk_name,
    }

    const LAST: Option<&'static str> =
        Some("nothing is left to check once a GPU is lost: move this check to the end");

    fn kills(&self) -> Option<&str> {
        Some(&self.gpu)
    }
}
