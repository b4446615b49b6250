//! `provider`: memory of a device as p2pmem.

use super::{Keys, check};

check! {
    /// Checks that the device has published its whole CMB, or aperture, as p2pmem, by sysfs
    /// `p2pmem/{size,published,available}`.
    "provider": "{device} provides its memory as p2pmem"
    pub struct Provider {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`.
        pub device: String = Keys::provider,
    }
}
