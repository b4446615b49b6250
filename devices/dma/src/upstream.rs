//! The way up: requests that the client (QEMU) executes for the device.

use peerbar_pci::Iova;
use thiserror::Error;

use crate::buffer::Buffer;

/// Memory that is reached by asking the client, which walks its IOMMU.
///
/// A call blocks until the client has answered, so the thread that answers region accesses must
/// never make one.
pub trait Upstream: Send + Sync {
    /// Executes `requests`, many at a time and in any order, and sets the outcome of each. Calls
    /// `may_go_on` before each message. Once that returns `false` or a request has failed, nothing
    /// more is sent, and all unsent requests come after the sent ones. Waits for the sent ones.
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], may_go_on: &dyn Fn() -> bool);

    /// Ends the connection to the client, if there is one: for the client, the device is gone.
    fn disconnect(&self) {}

    /// Wakes the thread that answers the client, to look at the device's link.
    fn wake(&self) {}
}

/// One request to the client.
#[derive(Debug)]
pub struct UpstreamRequest<'a> {
    /// Its first address.
    pub address: Iova,
    /// The data to read or write.
    pub data: Buffer<'a>,
    /// The outcome; `None` while nothing of the request has been sent.
    pub outcome: Option<Result<(), UpstreamError>>,
}

impl<'a> UpstreamRequest<'a> {
    /// Makes a request that has not been sent.
    pub fn new(address: Iova, data: Buffer<'a>) -> Self {
        Self {
            address,
            data,
            outcome: None,
        }
    }
}

/// The reason why a request to the client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpstreamError {
    /// The client refused it: no mapping, no permission, bus mastering off.
    #[error("the client refused it (errno {0})")]
    Refused(i32),
    /// There is no client, or it left before it answered.
    #[error("no client")]
    Gone,
    /// The client did not answer in time.
    #[error("the client did not answer in time")]
    TimedOut,
    /// It was not sent: the client serves no DMA.
    #[error("this process has not mapped it, and the client serves no DMA")]
    Unserved,
    /// It was not sent completely: another part of the request had failed, or the function may no
    /// longer issue requests.
    #[error("stopped before all of it was requested")]
    Stopped,
}
