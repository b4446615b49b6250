//! The messages between endpoints and their switch.

use std::fmt;

use peerbar_pci::BusAddress;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::link_mode::LinkMode;
use crate::window::{BarWindow, Descriptor};

/// Number of an endpoint at its switch. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId(pub u32);

impl PortId {
    /// No endpoint. Windows of the peers that an endpoint knew when it lost its link belong to this
    /// port.
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
    /// Bytes per second in each direction; 0 means unlimited.
    pub bandwidth: u64,
    /// Shared memory, from its start on, in which every requester reserves the link. The endpoints
    /// define its layout.
    #[serde(skip)]
    pub meter: Descriptor,
}

/// The reason why an endpoint may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The endpoint uses another version of the protocol.
    #[error("it speaks another protocol: build switch and devices from the same source")]
    Protocol,
    /// An endpoint with that name is attached.
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

/// A message; the table in the crate's documentation describes them.
///
/// On the wire it has postcard's format. Hello must stay first, so that an endpoint with another
/// protocol version can be refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// An endpoint wants to attach.
    Hello {
        /// The endpoint's [`PROTOCOL`](crate::PROTOCOL).
        protocol: u32,
        /// Its name: 1 to 32 printable ASCII characters.
        name: String,
    },
    /// The endpoint is attached.
    Welcome {
        /// Its number.
        port: PortId,
        /// The switch's treatment of its requests to peers.
        mode: LinkMode,
        /// The memory of the count of changes ([`peerbar_dma::ChangeCount`]).
        #[serde(skip)]
        changes: Descriptor,
    },
    /// The endpoint may not attach.
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
        /// The windows; their claims are ignored.
        windows: Vec<BarWindow>,
        /// The leases of the lent windows. Not sent if no window is lent.
        #[serde(skip)]
        leases: Descriptor,
    },
    /// The guest may continue after an Announce.
    Announced {
        /// The sequence number of the Announce.
        sequence: u64,
    },
    /// All windows of a peer.
    Peer {
        /// The ticket to repeat in the Ack. It cannot be guessed, so the Ack shows that this was
        /// read.
        ticket: u64,
        /// The owner of the windows.
        peer: PortId,
        /// The windows.
        windows: Vec<BarWindow>,
        /// The leases of those that are lent.
        #[serde(skip)]
        leases: Descriptor,
        /// The count up to which all changes are known once this is received.
        known: u64,
    },
    /// All changes up to this count have been sent.
    Known {
        /// The count, as in the memory of the Welcome.
        count: u64,
    },
    /// The windows from before a Peer are no longer used.
    Ack {
        /// The ticket of the Peer.
        ticket: u64,
    },
    /// Read from a peer.
    Read {
        /// The completer; on arrival there, the requester.
        peer: PortId,
        /// Chosen by the requester.
        tag: u64,
        /// The address.
        address: BusAddress,
        /// Number of bytes, 1 to [`MAX_DATA`](crate::MAX_DATA).
        length: u32,
    },
    /// Write to a peer.
    Write {
        /// The completer; on arrival there, the requester.
        peer: PortId,
        /// Chosen by the requester.
        tag: u64,
        /// The address.
        address: BusAddress,
        /// 1 to [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: ByteBuf,
    },
    /// The answer to a Read or Write.
    Reply {
        /// The requester; on arrival there, the completer.
        peer: PortId,
        /// The tag of the request.
        tag: u64,
        /// The outcome.
        outcome: RequestResult,
    },
    /// Asks for a Peer of [`PortId::NONE`] without windows, after those of all peers.
    Mark,
}
