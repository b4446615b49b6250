//! The path upstream, which does not block a client that waits for the server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use peerbar_dma::{Upstream, UpstreamError, UpstreamRequest};
use peerbar_endpoint::ClientMemory;
use peerbar_vfio_user::remote::RemoteDevice;

/// The longest wait of a request for the server's answers to the client's accesses. A server that
/// answers them only after its own request would wait for that longer than QEMU does by default for
/// an answer (5 s).
const LONGEST: Duration = Duration::from_secs(2);

/// The client as the path upstream of a server whose answers it waits for.
///
/// QEMU executes a request only after its own access is answered, and the server may ask for DMA
/// before it answers that. So writes are answered as posted, and other accesses come first.
pub(crate) struct PatientUpstream {
    pub(crate) client: ClientMemory,
    pub(crate) server: Weak<RemoteDevice>,
}

impl Upstream for PatientUpstream {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        let server: Option<Arc<RemoteDevice>> = self.server.upgrade();
        let posted = server.as_ref().map(|server| server.post_writes(LONGEST));
        match posted {
            Some(Some(_posted)) => self.client.carry_out(requests, may_go_on),
            failed => {
                let error = match failed {
                    None => UpstreamError::Gone,
                    Some(_) => UpstreamError::TimedOut,
                };
                if let Some(first) = requests.first_mut() {
                    first.outcome = Some(Err(error));
                }
            }
        }
    }

    fn disconnect(&self) {
        self.client.disconnect();
    }

    fn wake(&self) {
        self.client.wake();
    }
}
