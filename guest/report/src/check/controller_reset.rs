//! `controller-reset`: a reset of a controller.

use super::{Keys, check};

check! {
    /// The controller is reset through sysfs and is live again afterwards; its p2pmem is still there.
    "controller-reset": "{device} survives a controller reset"
    pub struct ControllerReset {
        /// Name of an `[[nvme]]`.
        pub device: String = Keys::disk_name,
    }
}
