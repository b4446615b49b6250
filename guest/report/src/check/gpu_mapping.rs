//! `gpu-mapping`: GPU memory mapped into a program.

use super::{Keys, check};

check! {
    /// The processor loads from GPU memory and stores to it through mappings, which outlive the buffers and files that
    /// they come from.
    "gpu-mapping": "VRAM of {gpu} through mappings"
    pub struct GpuMapping {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
