//! `provider`: memory of a device as p2pmem.

use super::{Keys, check};

check! {
    /// The device has published its whole CMB, or aperture, as p2pmem: sysfs `p2pmem/{size,published,available}` say
    /// so.
    "provider": "{device} provides its memory as p2pmem"
    pub struct Provider {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`.
        pub device: String = Keys::provider,
    }
}
