//! `gpu-reset`: a reset under load.

use super::{Keys, check};

check! {
    /// The GPU is reset under load: no command and no contents are lost, except a command that cannot be repeated,
    /// which is reported as lost.
    "gpu-reset": "{gpu} is reset under load"
    pub struct GpuReset {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
    }
}
