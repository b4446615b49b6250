//! The memory that holds a check's data between its transfers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The buffer of a copy: `"guest-ram"` or `{ p2pmem = "disk0" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Buffer {
    /// p2pmem of the named device or GPU: the copy must be peer to peer.
    P2pmem(String),
    /// The guest's own memory: the control, which must go through guest RAM.
    GuestRam,
}

impl Buffer {
    /// Returns the device whose p2pmem it is.
    pub fn provider(&self) -> Option<&str> {
        match self {
            Buffer::P2pmem(device) => Some(device),
            Buffer::GuestRam => None,
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::P2pmem(device) => write!(f, "p2pmem of {device}"),
            Buffer::GuestRam => f.write_str("guest RAM"),
        }
    }
}
