//! A client and peers that refuse all requests.

use peerbar_dma::{Buffer, PeerError, PeerId, Peers, Upstream, UpstreamError, UpstreamRequest};
use peerbar_pci::BusAddress;

/// A client that refuses all requests, and peers without registers.
pub(crate) struct NoUpstream;

impl Upstream for NoUpstream {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _: &dyn Fn() -> bool) {
        if let Some(first) = requests.first_mut() {
            first.outcome = Some(Err(UpstreamError::Refused(19)));
        }
    }
}

impl Peers for NoUpstream {
    fn access(&self, _: PeerId, _: BusAddress, _: Buffer<'_>) -> Result<(), PeerError> {
        Err(PeerError::Unsupported)
    }
}
