//! Requests to the client: it reads and writes the guest's memory for us, through the guest's IOMMU.

use std::sync::Arc;

use crate::call::{Call, DmaRequest};
use crate::channel::Channel;
use crate::pending::Reply;

/// Requests to the client of a session, from any number of threads. All clones are the same one.
///
/// A call blocks until the client has answered, which QEMU does only after its own accesses are answered: so never
/// call from a method of [`Device`](crate::Device).
#[derive(Clone, Debug)]
pub struct Client {
    channel: Arc<Channel>,
}

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        let channel = Arc::new(channel);
        Self { channel }
    }

    /// Carries out `requests`, many at a time and in any order, and notes the outcome of each. If a read fails (vfio-user,
    /// DMA_READ), the contents of its data are undefined; if a write fails (DMA_WRITE), any part of it may have been written,
    /// but nothing is written after the return, unless it is [`TimedOut`](crate::RequestError::TimedOut). It calls `may_go_on` before each
    /// message; once that returns false, or a request has failed, it sends no more and waits for the replies to what it has
    /// sent.
    pub fn carry_out(&self, requests: &mut [DmaRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        Call::new(&self.channel, requests).carry_out(may_go_on);
    }

    /// Hands a reply to the call that waits for it. False if there is none.
    pub(crate) fn complete(&self, reply: Reply) -> bool {
        self.channel.pending.complete(reply)
    }

    /// Ends the session. All calls fail with [`RequestError::Gone`](crate::RequestError::Gone), now and later.
    pub fn disconnect(&self) {
        self.channel.disconnect();
    }

    /// Has [`Device::woken`](crate::Device::woken) called, by the thread that serves the session.
    pub fn wake(&self) {
        self.channel.attention.signal();
    }

    /// Fails all calls with [`RequestError::Gone`], now and later.
    pub(crate) fn close(&self) {
        self.channel.pending.close();
    }
}
