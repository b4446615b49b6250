//! `gpu-atomics`: atomic operations.

use super::{Keys, check};

check! {
    /// All threads of a launch add to one counter in guest RAM, and no addition is lost.
    "gpu-atomics": "atomic adds of {gpu} to guest RAM"
    pub struct GpuAtomics {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
