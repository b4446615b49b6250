//! The messages between adapters and their fabric.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::gid::Gid;
use crate::limits::MAX_DATA;

/// What a link carries beside the data of a packet, in bytes.
const HEADER: usize = 64;

/// Number of one attachment of an adapter. The fabric chooses it; no other adapter can guess it, and it is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// That of no adapter, or of any that has a GID.
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

/// Why an adapter may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// It speaks another version of the protocol.
    #[error("it speaks another protocol: build fabric and adapters from the same source")]
    Protocol,
    /// An adapter of that name or GID is attached.
    #[error("its name or GID is taken: give each adapter a name and a GID of its own")]
    Taken,
    /// As many adapters are attached as may be.
    #[error("it has as many adapters as it takes: end one of them")]
    Full,
}

/// A message, as the table in the crate's documentation has it.
///
/// On the wire it is in postcard's format, and Hello stays first: an adapter of another protocol is to be refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// An adapter wants to attach.
    Hello {
        /// [`PROTOCOL`](crate::PROTOCOL) as it has it.
        protocol: u32,
        /// Its name: 1 to 32 ASCII letters, digits, `-`, `_` or `.`.
        name: String,
        /// Its address.
        gid: Gid,
    },
    /// It is attached.
    Welcome {
        /// Of this attachment.
        incarnation: Incarnation,
    },
    /// It may not attach.
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
        /// The adapter that has it; none if no adapter has.
        incarnation: Incarnation,
        /// Whether descriptors can be sent to it: the fabric impairs nothing between the two.
        takes_descriptors: bool,
    },
    /// A packet, to or from another adapter.
    Packet {
        /// Its destination; its source when it arrives there.
        peer: Gid,
        /// Of the destination, or none if any will do; of the source when it arrives there.
        incarnation: Incarnation,
        /// What the adapters say to each other.
        body: Body,
    },
    /// An adapter asks for a direct connection with the holder of this GID. There is no answer if it cannot have one.
    Connect {
        /// The address.
        gid: Gid,
    },
    /// A direct connection: a socket whose other end the holder of this GID has. Packets between the two may pass there as they do at the
    /// fabric, until the fabric ends it.
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

/// What an adapter says to another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Body {
    /// Data that may be lost, come twice or come late.
    Datagram {
        /// At most [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: ByteBuf,
    },
    /// Data that asks for a response. It is sent again until an answer comes.
    Request {
        /// Of the request. A requester gives its requests to one peer the tags 0, 1, 2 and so on.
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
        /// That of the request.
        tag: u64,
    },
    /// The outcome of a request.
    Response {
        /// That of the request.
        tag: u64,
        /// At most [`MAX_DATA`](crate::MAX_DATA) bytes; none if the peer does not carry it out.
        data: Option<ByteBuf>,
    },
    /// The requester waits for no response with a lower tag.
    Settled {
        /// That tag.
        oldest: u64,
    },
}

impl Body {
    /// How much a link carries for it, in bytes.
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

    /// How many descriptors come with it.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Request { descriptors, .. } => descriptors.len(),
            _ => 0,
        }
    }

    /// A field whose value no adapter would send.
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

    /// What it is, for the record.
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
