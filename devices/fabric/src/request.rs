//! A request to another adapter, and the errors of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::gid::Gid;
use crate::message::Incarnation;

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum RequestError {
    /// No adapter has that GID, or the one that had it has left, or the fabric is gone. The request
    /// may have been executed.
    #[error("no adapter has that GID, or it is gone")]
    Gone,
    /// The peer gave no sign of life. The request may have been executed.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer refuses it.
    #[error("the peer refuses the request")]
    Refused,
    /// A rule selects the two, so no descriptor can be sent.
    #[error("no descriptor can be sent to that peer: send the data instead")]
    NoDescriptors,
}

/// The reason why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The limit of pending requests to that peer is reached. There is room again once the oldest
    /// of them is done.
    #[error("too many requests to that adapter are under way")]
    Busy,
    /// More data or descriptors than a packet takes.
    #[error("more data or descriptors than a packet takes")]
    TooLong,
    /// The fabric is gone. The link attaches again by itself.
    #[error("the fabric is gone")]
    Lost,
}

/// The contents of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestData {
    pub(crate) data: ByteBuf,
    pub(crate) descriptors: Vec<Arc<OwnedFd>>,
}

/// The identity of a peer's request, for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId {
    pub(crate) from: Gid,
    pub(crate) incarnation: Incarnation,
    pub(crate) tag: u64,
}
