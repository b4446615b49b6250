//! What a request says of itself: what it is for, and on whose behalf.

use peerbar_dma_log::{Origin, Purpose};

/// The purpose of a request, and whose it is.
///
/// Made from a [`Purpose`] alone where the device itself is the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// What it is for.
    pub purpose: Purpose,
    /// On whose behalf it is made.
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
