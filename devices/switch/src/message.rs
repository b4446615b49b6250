//! What endpoints and their switch say to each other.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;

use crate::link_mode::LinkMode;

/// Number of an endpoint at its switch. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A range of bus addresses that an endpoint answers.
#[derive(Clone, Debug)]
pub struct Window {
    /// Which BAR it is.
    pub bar: u8,
    /// First bus address.
    pub address: u64,
    /// Length in bytes, not 0; the end does not pass 2^64.
    pub size: u64,
    /// Of two windows over one address, the one with the smaller claim answers. The switch sets it.
    pub claim: u64,
    /// What is behind it.
    pub memory: Memory,
}

/// What is behind a window.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Memory that is lent: a descriptor, and where in it the window starts.
    Lent(Arc<OwnedFd>, u64),
    /// Something that is reached by messages to the endpoint.
    ByMessage,
    /// Nothing any more: its endpoint has vanished.
    Gone,
}

/// How long transfers take on a link, and where they reserve it.
#[derive(Clone, Debug)]
pub struct LinkTiming {
    /// Time from one end to the other, in nanoseconds.
    pub latency: u64,
    /// Bytes per second in each direction; 0: as fast as can be.
    pub bandwidth: u64,
    /// Shared memory from its start on: who transfers by the link notes there how long it is taken. Its layout is the
    /// endpoints'.
    pub meter: Arc<OwnedFd>,
}

/// Why an endpoint is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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

/// What came of a request to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done.
    Done,
    /// The peer does not answer at that address (PCIe Base 6.0, 2.3.1, Unsupported Request).
    Unsupported,
    /// The peer has vanished.
    Gone,
    /// The peer did not answer in time.
    TimedOut,
}

/// A message, as the table in the crate's documentation has it.
#[derive(Clone, Debug)]
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
    },
    /// It is not let in.
    Refused(Refusal),
    /// How long transfers take on the link of an endpoint. Who does not say so has a link that takes no time.
    Link {
        /// Whose link; 0 from the endpoint itself.
        peer: PortId,
        /// Its timing.
        timing: LinkTiming,
    },
    /// All windows of the endpoint that sends it.
    Announce {
        /// Chosen by the endpoint.
        sequence: u64,
        /// The windows; their claims mean nothing.
        windows: Vec<Window>,
    },
    /// All others have acknowledged an Announce.
    Announced {
        /// That of the Announce.
        sequence: u64,
    },
    /// All windows of a peer.
    Peer {
        /// Number of the change.
        epoch: u64,
        /// Whose windows.
        peer: PortId,
        /// The windows.
        windows: Vec<Window>,
    },
    /// Nothing happens by the windows of before a Peer any more.
    Ack {
        /// That of the Peer.
        epoch: u64,
    },
    /// Read from a peer.
    Read {
        /// For whom; from whom when it arrives there.
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
        /// For whom; from whom when it arrives there.
        peer: PortId,
        /// Chosen by the requester.
        tag: u64,
        /// Bus address.
        address: u64,
        /// 1 to [`MAX_DATA`](crate::MAX_DATA) bytes.
        data: Vec<u8>,
    },
    /// The answer to a Read or Write.
    Reply {
        /// The requester; who answered when it arrives there.
        peer: PortId,
        /// That of the request.
        tag: u64,
        /// What came of it.
        status: Status,
        /// What was read.
        data: Vec<u8>,
    },
}

impl Refusal {
    /// In the order of their numbers on the wire.
    pub(crate) const ALL: [Self; 3] = [Self::Protocol, Self::NameTaken, Self::Full];
}

impl Status {
    /// In the order of their numbers on the wire.
    pub(crate) const ALL: [Self; 4] = [Self::Done, Self::Unsupported, Self::Gone, Self::TimedOut];
}
