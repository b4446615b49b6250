//! The tag of a request: its purpose, and the queue and command on whose behalf it is made.

use peerbar_dma_log::{Origin, Purpose};

/// The purpose and the origin of a request.
///
/// A [`Purpose`] alone becomes a tag whose origin is the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The purpose.
    pub purpose: Purpose,
    /// The queue and command on whose behalf it is made.
    pub origin: Origin,
}

impl Tag {
    /// Makes the tag of a request on behalf of `origin`.
    pub fn new(purpose: Purpose, origin: Origin) -> Self {
        Self { purpose, origin }
    }
}

impl From<Purpose> for Tag {
    fn from(purpose: Purpose) -> Self {
        Self::new(purpose, Origin::Device)
    }
}
