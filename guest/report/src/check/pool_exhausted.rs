//! `pool-exhausted`: more p2pmem than there is.

use super::{Keys, check};

check! {
    /// Checks that a mapping of more than the provider's pool holds fails with ENOMEM when it is
    /// made or used.
    "pool-exhausted": "more than the p2pmem of {provider} is refused"
    pub struct PoolExhausted {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`.
        pub provider: String = Keys::provider,
    }
}
