//! The messages between adapters and their fabric.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::gid::Gid;
use crate::limits::MAX_DATA;

/// Bytes that a link carries in addition to the data of a packet.
const HEADER: usize = 64;

/// Number of one attachment of an adapter. The fabric chooses it; no other adapter can guess it,
/// and it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// No adapter, or any adapter that has a GID.
    pub const NONE: Self = Self(0);
}

/// One attachment of the adapter that has a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdapterId {
    pub(crate) gid: Gid,
    pub(crate) incarnation: Incarnation,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The reason why an adapter may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The adapter uses another version of the protocol.
    #[error("it speaks another protocol: build fabric and adapters from the same source")]
    Protocol,
    /// An adapter with that name or GID is attached.
    #[error("its name or GID is taken: give each adapter a name and a GID of its own")]
    Taken,
    /// The limit of attached adapters is reached.
    #[error("it has no room for another adapter: end one of them")]
    Full,
}

/// A message; the table in the crate's documentation describes them.
///
/// On the wire it has postcard's format. Hello must stay first, so that an adapter with another
/// protocol version can be refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// An adapter wants to attach.
    Hello {
        /// The adapter's [`PROTOCOL`](crate::PROTOCOL).
        protocol: u32,
        /// Its name: 1 to 32 ASCII letters, digits, `-`, `_` or `.`.
        name: String,
        /// Its address.
        gid: Gid,
    },
    /// The adapter is attached.
    Welcome {
        /// The incarnation of this attachment.
        incarnation: Incarnation,
    },
    /// The adapter may not attach.
    Refused(Refusal),
    /// An adapter asks for the holder of this GID.
    Resolve {
        /// The address.
        gid: Gid,
    },
    /// The holder of this GID: the answer to a Resolve, or to a packet for an adapter that has left.
    Peer {
        /// The address.
        gid: Gid,
        /// The adapter that has it, or [`Incarnation::NONE`].
        incarnation: Incarnation,
        /// Descriptors can be sent to it: the fabric does not impair packets between the two.
        takes_descriptors: bool,
    },
    /// A packet, to or from another adapter.
    Packet {
        /// Its destination; on arrival there, its source.
        peer: Gid,
        /// The incarnation of the destination, or [`Incarnation::NONE`] if any will do; on arrival
        /// there, that of the source.
        incarnation: Incarnation,
        /// The contents.
        body: Body,
    },
    /// An adapter asks for a direct connection with the holder of this GID. There is no answer if
    /// it cannot have one.
    Connect {
        /// The address.
        gid: Gid,
    },
    /// A direct connection: a socket whose other end the holder of this GID has. Packets between
    /// the two may use it as they use the fabric, until the fabric ends it.
    Direct {
        /// The address.
        gid: Gid,
        /// The adapter that has it.
        incarnation: Incarnation,
        /// This adapter's end of the socket.
        #[serde(skip)]
        socket: Option<Arc<OwnedFd>>,
    },
}

/// A message from one adapter to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Body {
    /// Data that may be lost, duplicated or late.
    Datagram {
        /// At most [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: ByteBuf,
    },
    /// Data that asks for a response. It is sent again until an answer comes.
    Request {
        /// The request's tag. A requester gives its requests to one peer the tags 0, 1, 2 and so
        /// on.
        tag: u64,
        /// The lowest tag that the requester still waits for.
        oldest: u64,
        /// At most [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: ByteBuf,
        /// At most [`MAX_DESCRIPTORS`](crate::MAX_DESCRIPTORS).
        #[serde(skip)]
        descriptors: Vec<Arc<OwnedFd>>,
    },
    /// A request has arrived, and its response will come later.
    Working {
        /// The request's tag.
        tag: u64,
    },
    /// The outcome of a request.
    Response {
        /// The request's tag.
        tag: u64,
        /// At most [`MAX_DATA`](crate::MAX_DATA) bytes, or `None` if the peer refuses the request.
        data: Option<ByteBuf>,
    },
    /// The requester waits for no response with a lower tag.
    Settled {
        /// That tag.
        oldest: u64,
    },
}

impl Body {
    /// Returns the bytes that a link carries for it.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Datagram { data }
            | Self::Request { data, .. }
            | Self::Response {
                data: Some(data), ..
            } => HEADER + data.len(),
            Self::Working { .. } | Self::Response { data: None, .. } | Self::Settled { .. } => {
                HEADER
            }
        }
    }

    /// Returns the number of descriptors that come with it.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Request { descriptors, .. } => descriptors.len(),
            _ => 0,
        }
    }

    /// Returns the name of a field with a value that no adapter would send.
    pub(crate) fn wrong_field(&self) -> Option<&'static str> {
        match self {
            Self::Datagram { data }
            | Self::Request { data, .. }
            | Self::Response {
                data: Some(data), ..
            } if data.len() > MAX_DATA => Some("a length"),
            Self::Request { tag, oldest, .. } if oldest > tag => Some("a tag"),
            _ => None,
        }
    }

    /// Returns its summary, for the record.
    pub(crate) fn summary(&self) -> Summary {
        let (kind, tag) = match self {
            Self::Datagram { .. } => ("datagram", None),
            Self::Request { tag, .. } => ("request", Some(*tag)),
            Self::Working { tag } => ("working", Some(*tag)),
            Self::Response { tag, .. } => ("response", Some(*tag)),
            Self::Settled { oldest } => ("settled", Some(*oldest)),
        };
        Summary {
            kind,
            tag,
            size: self.size(),
        }
    }
}

/// A body in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    kind: &'static str,
    tag: Option<u64>,
    size: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, tag, size } = self;
        match tag {
            Some(tag) => write!(f, "{kind} {tag}, {size} bytes"),
            None => write!(f, "{kind}, {size} bytes"),
        }
    }
}
