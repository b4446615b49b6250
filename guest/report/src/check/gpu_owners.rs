//! `gpu-owners`: memory that changes its owner.

use super::{Keys, check};

check! {
    /// GPU memory that is allocated again is all zeros.
    "gpu-owners": "memory of {gpu} is zeroed for a new owner"
    pub struct GpuOwners {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
