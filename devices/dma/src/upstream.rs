//! The way up: requests that the client (QEMU) carries out for the device.

use thiserror::Error;

use crate::buffer::Buffer;

/// Memory reached by asking the client, which walks its IOMMU.
///
/// A call blocks until the client has answered, so it is never made by the thread that answers region accesses.
pub trait Upstream: Send + Sync {
    /// Carries out `asks`, many at a time and in any order, and sets the outcome of each. Once one has failed, or
    /// `may_go_on`, which is called before each message, returns false, nothing more is sent: what is not sent comes after
    /// all that is. Waits for what has been sent.
    fn carry_out(&self, asks: &mut [Ask<'_>], may_go_on: &dyn Fn() -> bool);

    /// Ends the connection to the client, if there is one: for it, the device is gone.
    fn disconnect(&self) {}

    /// Has the thread that answers the client look at the device's link.
    fn wake(&self) {}
}

/// One request to the client.
#[derive(Debug)]
pub struct Ask<'a> {
    /// An IOVA or bus address.
    pub address: u64,
    /// What is read or written there.
    pub data: Buffer<'a>,
    /// Its outcome; none while nothing of it has been sent.
    pub outcome: Option<Result<(), UpstreamError>>,
}

impl<'a> Ask<'a> {
    /// Nothing of it has been sent.
    pub fn new(address: u64, data: Buffer<'a>) -> Self {
        Self {
            address,
            data,
            outcome: None,
        }
    }
}

/// Why a request to the client failed.
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
    /// Not all of it was sent: another part of the request had failed, or the function may no longer issue requests.
    #[error("stopped before all of it was asked")]
    Stopped,
}
