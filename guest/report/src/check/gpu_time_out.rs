//! `gpu-time-out`: a command that takes too long.

use super::{Keys, check};

check! {
    /// A launch that takes longer than the GPU's `job-timeout` ends with an error, and its channel goes on; other channels'
    /// commands are done meanwhile. The launch makes 2^25 requests of DMA, so a `link-latency` of 1us makes it half a minute
    /// long.
    "gpu-time-out": "{gpu} ends a launch that takes too long"
    pub struct GpuTimeOut {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
