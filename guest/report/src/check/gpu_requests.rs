//! `gpu-requests`: random requests to the GPU's driver.

use super::{Keys, check};

check! {
    /// Three threads make random requests to the GPU's driver, most of them nearly right, on files and buffers that come and go. The
    /// kernel must not complain, and afterwards all memory is free and the GPU computes.
    "gpu-requests": "{requests} random requests to the driver of {gpu}, seed {seed}"
    pub struct GpuRequests {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// How many requests.
        pub requests: u32 = Keys::number,
        /// What they are made of: the same seed makes the same requests, if not at the same time.
        pub seed: u32 = Keys::number,
    }
}
