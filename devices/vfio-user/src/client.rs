//! Requests to the client, which reads and writes the guest's memory for the device, through the
//! guest's IOMMU.

use std::sync::Arc;

use crate::call::{Call, DmaRequest};
use crate::channel::Channel;
use crate::pending::Reply;

/// Requests to the client of a session, from any number of threads. All clones refer to the same
/// session.
///
/// A call blocks until the client has answered, which QEMU does only after its own accesses are
/// answered. So never call it from a method of [`Device`](crate::Device).
#[derive(Clone, Debug)]
pub struct Client {
    channel: Arc<Channel>,
}

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        let channel = Arc::new(channel);
        Self { channel }
    }

    /// Executes `requests`, many at a time and in any order, and records the outcome of each. If a
    /// read fails (vfio-user, DMA_READ), the contents of its data are undefined; if a write fails
    /// (DMA_WRITE), any part of it may have been written, but none is written after the return,
    /// unless it is [`TimedOut`](crate::RequestError::TimedOut). It calls `may_go_on` before each
    /// message; once that returns `false`, or a request has failed, it sends no more messages and
    /// waits for the outstanding replies.
    pub fn carry_out(&self, requests: &mut [DmaRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        Call::new(&self.channel, requests).carry_out(may_go_on);
    }

    /// Passes a reply to the call that waits for it. Returns `false` if no call does.
    pub(crate) fn complete(&self, reply: Reply) -> bool {
        self.channel.pending.complete(reply)
    }

    /// Ends the session. All calls fail with [`RequestError::Gone`](crate::RequestError::Gone), now and later.
    pub fn disconnect(&self) {
        self.channel.disconnect();
    }

    /// Makes the thread that serves the session call [`Device::woken`](crate::Device::woken).
    pub fn wake(&self) {
        self.channel.attention.signal();
    }

    /// Fails all calls with [`RequestError::Gone`], now and later.
    pub(crate) fn close(&self) {
        self.channel.pending.close();
    }
}
