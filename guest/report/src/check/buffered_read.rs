//! `buffered-read`: a read through the page cache.

use super::{Keys, check};

check! {
    /// Checks that a buffered read into p2pmem gets the right data, and that none of it is
    /// transferred peer to peer.
    "buffered-read": "buffered read of {from} into p2pmem of {provider}"
    pub struct BufferedRead {
        /// Name of the `[[nvme]]` to read.
        pub from: String = Keys::disk_name,
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the destination.
        pub provider: String = Keys::provider,
    }
}
