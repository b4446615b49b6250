//! The layouts of the messages.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of the protocol: switch and endpoints must agree on it.
pub const PROTOCOL: u32 = 2;
/// The most windows of one endpoint: a function has six BARs (PCI Local Bus 3.0, 6.2.5).
pub const MAX_WINDOWS: usize = 6;
/// The most descriptors that come with one message.
pub const MAX_DESCRIPTORS: usize = MAX_WINDOWS;
/// The most data of one request to a peer, in bytes.
pub const MAX_DATA: usize = 32 << 10;
/// The longest message in bytes.
pub const MAX_PACKET: usize = MAX_DATA + 64;
/// The longest name of an endpoint in bytes.
pub(crate) const MAX_NAME: usize = 32;

/// What a message is; its first four bytes.
pub(crate) mod kind {
    pub(crate) const HELLO: u32 = 1;
    pub(crate) const WELCOME: u32 = 2;
    pub(crate) const REFUSED: u32 = 3;
    pub(crate) const ANNOUNCE: u32 = 4;
    pub(crate) const ANNOUNCED: u32 = 5;
    pub(crate) const PEER: u32 = 6;
    pub(crate) const ACK: u32 = 7;
    pub(crate) const READ: u32 = 8;
    pub(crate) const WRITE: u32 = 9;
    pub(crate) const REPLY: u32 = 10;
    pub(crate) const LINK: u32 = 11;
}

/// Hello. The name has zeros at its end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) kind: U32,
    pub(crate) protocol: U32,
    pub(crate) name: [u8; MAX_NAME],
}

/// Welcome.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Welcome {
    pub(crate) kind: U32,
    pub(crate) port: U32,
    pub(crate) mode: U32,
}

/// Refused.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Refused {
    pub(crate) kind: U32,
    pub(crate) reason: U32,
}

/// Link, with one descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Link {
    pub(crate) kind: U32,
    /// To an endpoint: the owner of the link. From an endpoint: 0.
    pub(crate) peer: U32,
    pub(crate) latency: U64,
    pub(crate) bandwidth: U64,
}

/// Announce and Peer: [`WireWindow`]s follow, up to the end of the message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Windows {
    pub(crate) kind: U32,
    /// The owner of the windows in a Peer, 0 in an Announce.
    pub(crate) peer: U32,
    /// The sequence number of an Announce, the epoch of a Peer.
    pub(crate) number: U64,
}

/// One window of an Announce or a Peer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct WireWindow {
    pub(crate) address: U64,
    pub(crate) size: U64,
    /// Where in the descriptor the memory starts.
    pub(crate) offset: U64,
    /// Set by the switch.
    pub(crate) claim: U64,
    pub(crate) bar: U32,
    pub(crate) backing: U32,
}

/// Values of [`WireWindow::memory`].
pub(crate) mod backing {
    pub(crate) const LENT: u32 = 0;
    pub(crate) const BY_MESSAGE: u32 = 1;
    pub(crate) const GONE: u32 = 2;
}

/// Announced and Ack.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Number {
    pub(crate) kind: U32,
    pub(crate) reserved: U32,
    /// The sequence number of the Announce, the epoch of the Peer.
    pub(crate) number: U64,
}

/// Read, Write and Reply. The data of a Write, or of a Reply to a Read that was done, follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Request {
    pub(crate) kind: U32,
    /// The other endpoint.
    pub(crate) peer: U32,
    /// Chosen by the requester, repeated in the reply.
    pub(crate) tag: U64,
    /// Bus address; 0 in a Reply.
    pub(crate) address: U64,
    /// How many bytes to read; 0 in a Write.
    pub(crate) length: U32,
    /// The outcome in a Reply, else 0.
    pub(crate) status: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_fits_a_packet() {
        let windows = size_of::<Windows>() + MAX_WINDOWS * size_of::<WireWindow>();
        assert!(windows <= MAX_PACKET);
        assert!(size_of::<Request>() + MAX_DATA <= MAX_PACKET);
        assert!(size_of::<Hello>() <= MAX_PACKET);
    }
}
