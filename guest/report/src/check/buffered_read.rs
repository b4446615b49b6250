//! `buffered-read`: a read through the page cache.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// A buffered read into p2pmem has the right data, and no byte of it is transferred from peer to peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferedRead {
    /// The disk that is read.
    pub from: String,
    /// The disk or GPU whose p2pmem is the destination.
    pub provider: String,
}

impl fmt::Display for BufferedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "buffered read of {} into p2pmem of {}",
            self.from, self.provider
        )
    }
}

impl CheckKind for BufferedRead {
    const KIND: &'static str = "buffered-read";
    const ABOUT: &'static str = "A buffered read into p2pmem has the right data, and no byte of it is transferred from \
        peer to peer.";
    const KEYS: &'static [Key] = &[
        Key::required("from", "Name of the `[[nvme]]` that is read."),
        Key::required(
            "provider",
            "Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the destination.",
        ),
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            from: keys.disk("from")?.name.clone(),
            provider: keys.provider("provider")?,
        })
    }
}
