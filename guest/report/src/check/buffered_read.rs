//! `buffered-read`: a read through the page cache.

use super::{Keys, check};

check! {
    /// A buffered read into p2pmem has the right data, and no byte of it is transferred from peer to peer.
    "buffered-read": "buffered read of {from} into p2pmem of {provider}"
    pub struct BufferedRead {
        /// Name of the `[[nvme]]` that is read.
        pub from: String = Keys::disk_name,
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the destination.
        pub provider: String = Keys::provider,
    }
}
