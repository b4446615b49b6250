//! `gpu-faults`: channels that fail alone.

use super::{Keys, check};

check! {
    /// A program and a driver that misbehave, each on its own channel, get an error, an interrupt and a record; other
    /// channels go on. Not behind an IOMMU, whose driver would complain.
    "gpu-faults": "{gpu} isolates channels that misbehave"
    pub struct GpuFaults {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
