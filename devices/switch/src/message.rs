//! The messages between endpoints and their switch.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::link_mode::LinkMode;
use crate::window::{BarWindow, Descriptor};

/// Number of an endpoint at its switch. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId(pub u32);

impl PortId {
    /// No endpoint. The windows of the peers that an endpoint knew when it lost its link are of this port.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The timing of a link, and the memory in which transfers reserve it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkTiming {
    /// Time from one end to the other, in nanoseconds.
    pub latency: u64,
    /// Bytes per second in each direction; 0: as fast as can be.
    pub bandwidth: u64,
    /// Shared memory from its start on, in which every requester reserves the link. Its layout is the endpoints'.
    #[serde(skip)]
    pub meter: Descriptor,
}

/// Why an endpoint may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// It speaks another version of the protocol.
    #[error("it speaks another protocol: build switch and devices from the same source")]
    Protocol,
    /// An endpoint of that name is attached.
    #[error("the name is taken: give each device below it a name of its own")]
    NameTaken,
    /// All ports are in use.
    #[error("all its ports are in use: put some devices below another switch")]
    Full,
}

/// Why a request to a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RequestError {
    /// The peer does not answer at that address (PCIe Base 6.0, 2.3.1, Unsupported Request).
    #[error("the peer does not answer there")]
    Unsupported,
    /// The peer, or the switch, has vanished.
    #[error("the peer is gone")]
    Gone,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
}

/// The result of a request to a peer: the data that was read, nothing for a write.
pub type RequestResult = Result<ByteBuf, RequestError>;

/// A message, as the table in the crate's documentation has it.
///
/// On the wire it is in postcard's format, and Hello stays first: an endpoint of another protocol is to be refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// An endpoint wants to attach.
    Hello {
        /// [`PROTOCOL`](crate::PROTOCOL) as it has it.
        protocol: u32,
        /// Its name: 1 to 32 printable ASCII characters.
        name: String,
    },
    /// It is attached.
    Welcome {
        /// Its number.
        port: PortId,
        /// What the switch does with its requests to peers.
        mode: LinkMode,
        /// The memory of its count of changes ([`peerbar_dma::ChangeCount`]).
        #[serde(skip)]
        changes: Descriptor,
    },
    /// It may not attach.
    Refused(Refusal),
    /// The timing of an endpoint's link. Without this message a link takes no time.
    Link {
        /// The owner of the link; 0 from the endpoint itself.
        peer: PortId,
        /// Its timing.
        timing: LinkTiming,
    },
    /// All windows of the endpoint that sends it.
    Announce {
        /// Chosen by the endpoint.
        sequence: u64,
        /// The windows; their claims mean nothing.
        windows: Vec<BarWindow>,
        /// The leases of those that are lent. Not sent if none is.
        #[serde(skip)]
        leases: Descriptor,
    },
    /// The guest may go on after an Announce.
    Announced {
        /// That of the Announce.
        sequence: u64,
    },
    /// All windows of a peer.
    Peer {
        /// What the Ack repeats. It cannot be guessed, so the Ack shows that this was read.
        ticket: u64,
        /// The owner of the windows.
        peer: PortId,
        /// The windows.
        windows: Vec<BarWindow>,
        /// The leases of those that are lent.
        #[serde(skip)]
        leases: Descriptor,
        /// The count up to which all changes are known with this one.
        known: u64,
    },
    /// All changes up to this count have been sent.
    Known {
        /// As in the memory of the Welcome.
        count: u64,
    },
    /// The windows from before a Peer are no longer used.
    Ack {
        /// That of the Peer.
        ticket: u64,
    },
    /// Read from a peer.
    Read {
        /// The completer; the requester when it arrives there.
        peer: PortId,
        /// Chosen by the requester.
        tag: u64,
        /// Bus address.
        address: u64,
        /// How many bytes, 1 to [`MAX_DATA`](crate::MAX_DATA).
        length: u32,
    },
    /// Write to a peer.
    Write {
        /// The completer; the requester when it arrives there.
        peer: PortId,
        /// Chosen by the requester.
        tag: u64,
        /// Bus address.
        address: u64,
        /// 1 to [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: ByteBuf,
    },
    /// The answer to a Read or Write.
    Reply {
        /// The requester; the completer when it arrives there.
        peer: PortId,
        /// That of the request.
        tag: u64,
        /// The outcome.
        outcome: RequestResult,
    },
    /// Asks for a Peer of [`PortId::NONE`] without windows, after those of all peers.
    Mark,
}
