//! Who answers a function that goes astray.

use peerbar_dma::{Ask, PeerError, PeerId, Peers, Upstream, UpstreamError};

/// A client that has nothing, and peers without registers.
pub(crate) struct Nothing;

impl Upstream for Nothing {
    fn carry_out(&self, asks: &mut [Ask<'_>], _: &dyn Fn() -> bool) {
        if let Some(first) = asks.first_mut() {
            first.outcome = Some(Err(UpstreamError::Refused(19)));
        }
    }
}

impl Peers for Nothing {
    fn read(&self, _: PeerId, _: u64, _: &mut [u8]) -> Result<(), PeerError> {
        Err(PeerError::Unsupported)
    }

    fn write(&self, _: PeerId, _: u64, _: &[u8]) -> Result<(), PeerError> {
        Err(PeerError::Unsupported)
    }
}
