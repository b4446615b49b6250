//! The tag of a request: its purpose, and the queue and command that it is made for.

use peerbar_dma_log::{Origin, Purpose};

/// The purpose and the origin of a request.
///
/// Made from a [`Purpose`] alone where the device itself is the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// What it is for.
    pub purpose: Purpose,
    /// The queue and command that it is made for.
    pub origin: Origin,
}

impl Tag {
    /// A request for that purpose, on behalf of `origin`.
    pub fn new(purpose: Purpose, origin: Origin) -> Self {
        Self { purpose, origin }
    }
}

impl From<Purpose> for Tag {
    fn from(purpose: Purpose) -> Self {
        Self::new(purpose, Origin::Device)
    }
}
