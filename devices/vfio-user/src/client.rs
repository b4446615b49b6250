//! Requests to the client: it reads and writes the guest's memory for us, through the guest's IOMMU.

use std::sync::Arc;

use crate::call::{Call, Data, Request};
use crate::channel::Channel;
use crate::pending::Reply;
use crate::request_error::RequestError;

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

    /// Reads `data.len()` bytes at `address` (vfio-user, DMA_READ). On failure the contents of `data` are undefined.
    pub fn dma_read(&self, address: u64, data: &mut [u8]) -> Result<(), RequestError> {
        self.one(Request::new(address, Data::Read(data)))
    }

    /// Writes `data` at `address` (vfio-user, DMA_WRITE). On failure any part of it may have been written, but nothing
    /// is written after the return, unless it is [`RequestError::TimedOut`].
    pub fn dma_write(&self, address: u64, data: &[u8]) -> Result<(), RequestError> {
        self.one(Request::new(address, Data::Write(data)))
    }

    fn one(&self, request: Request<'_>) -> Result<(), RequestError> {
        let mut requests = [request];
        self.carry_out(&mut requests, &|| true);
        let [request] = requests;
        request.outcome.unwrap_or(Err(RequestError::Stopped))
    }

    /// Carries out `requests`, many at a time and in any order, and notes the outcome of each, as of [`Client::dma_read`] and
    /// [`Client::dma_write`]. It calls `may_go_on` before each message; once that returns false, or a request has failed, it
    /// sends no more and waits for the replies to what it has sent.
    pub fn carry_out(&self, requests: &mut [Request<'_>], may_go_on: &dyn Fn() -> bool) {
        Call::new(&self.channel, requests).carry_out(may_go_on);
    }

    /// Hands a reply to the call that waits for it. False if there is none.
    pub(crate) fn complete(&self, reply: Reply) -> bool {
        self.channel.pending.complete(reply)
    }

    /// Fails all calls with [`RequestError::Gone`], now and later.
    pub(crate) fn close(&self) {
        self.channel.pending.close();
    }
}
