//! The errors of a request to the client.

use rustix::io::Errno;
use thiserror::Error;

/// The errors of a request to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The client refused it: no mapping, no permission, bus mastering off. EPROTO if its reply makes no sense, EINVAL
    /// if the range passes the end of the address space.
    #[error("the client refused it: {0}")]
    Refused(Errno),
    /// The session is over.
    #[error("the client is gone")]
    Gone,
    /// The client did not answer in time.
    #[error("the client did not answer in time")]
    TimedOut,
    /// The request was not sent: the client has connected without a statement of its capabilities.
    /// SPDK's client does so, and does not answer requests for DMA.
    #[error("not sent: the client serves no DMA, so it must have the memory mapped")]
    Unserved,
    /// The request was not sent, or only in part: the caller has cancelled it, or another request
    /// of the call had failed.
    #[error("not sent to the client: the call was cancelled or had failed")]
    Stopped,
}

impl RequestError {
    /// A reply that does not match our request.
    pub(crate) const MALFORMED: Self = Self::Refused(Errno::PROTO);
}
