//! `controller-reset`: a reset of a controller.

use super::{Keys, check};

check! {
    /// Resets the controller through sysfs, and checks that it is live again afterwards and still
    /// has its p2pmem.
    "controller-reset": "{device} survives a controller reset"
    pub struct ControllerReset {
        /// Name of an `[[nvme]]`.
        pub device: String = Keys::disk_name,
    }
}
