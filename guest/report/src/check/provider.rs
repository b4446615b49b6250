//! `provider`: memory of a device as p2pmem.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The device has published its whole CMB, or aperture, as p2pmem: sysfs `p2pmem/{size,published,available}` say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// A disk's or GPU's name.
    pub device: String,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provides its memory as p2pmem", self.device)
    }
}

impl CheckKind for Provider {
    const KIND: &'static str = "provider";
    const ABOUT: &'static str = "The device has published its whole CMB, or aperture, as p2pmem: sysfs \
        `p2pmem/{size,published,available}` say so.";
    const KEYS: &'static [Key] = &[Key::required(
        "device",
        "Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            device: keys.provider("device")?,
        })
    }
}
