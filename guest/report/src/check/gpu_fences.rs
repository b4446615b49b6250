//! `gpu-fences`: a fence that is late.

use super::{Keys, check};

check! {
    /// A program puts a fence on a dma-buf of the GPU and does not signal it: a revoke ends in time, and the memory is not
    /// used again before the fence is signalled. The fence is one of the kernel's module vgem.
    "gpu-fences": "a late fence on a dma-buf of {gpu}"
    pub struct GpuFences {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }

    const ON_DEMAND: &'static [&'static str] = &["vgem"];

    fn modules_on_demand(&self) -> &'static [&'static str] {
        Self::ON_DEMAND
    }
}
