//! `pool-exhausted`: more p2pmem than there is.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// A mapping of more than the provider's pool holds fails with ENOMEM when it is made or used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolExhausted {
    /// A disk's or GPU's name.
    pub provider: String,
}

impl fmt::Display for PoolExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than the p2pmem of {} is refused", self.provider)
    }
}

impl CheckKind for PoolExhausted {
    const KIND: &'static str = "pool-exhausted";
    const ABOUT: &'static str = "A mapping of more than the provider's pool holds fails with ENOMEM when it is made or \
        used.";
    const KEYS: &'static [Key] = &[Key::required(
        "provider",
        "Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            provider: keys.provider("provider")?,
        })
    }
}
