//! From a message to its form on the wire.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::message::{LinkTiming, Message, PortId, Status};
use crate::window::{BarBacking, BarWindow};
use crate::wire::{self, MAX_NAME, backing, kind};

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that go with it.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

impl Message {
    /// Its form on the wire.
    pub fn encode(&self) -> Packet {
        let bytes = match self {
            Self::Hello { protocol, name } => hello(*protocol, name),
            Self::Welcome { port, mode } => {
                let welcome = wire::Welcome {
                    kind: U32::new(kind::WELCOME),
                    port: U32::new(port.0),
                    mode: U32::new(*mode as u32),
                };
                welcome.as_bytes().to_vec()
            }
            Self::Refused(refusal) => {
                let refused = wire::Refused {
                    kind: U32::new(kind::REFUSED),
                    reason: U32::new(*refusal as u32),
                };
                refused.as_bytes().to_vec()
            }
            Self::Link { peer, timing } => return link(*peer, timing),
            Self::Announce { sequence, windows } => {
                return with_windows(kind::ANNOUNCE, PortId(0), *sequence, windows);
            }
            Self::Peer {
                epoch,
                peer,
                windows,
            } => return with_windows(kind::PEER, *peer, *epoch, windows),
            Self::Announced { sequence } => number(kind::ANNOUNCED, *sequence),
            Self::Ack { epoch } => number(kind::ACK, *epoch),
            Self::Read {
                peer,
                tag,
                address,
                length,
            } => request(kind::READ, (*peer, *tag), (*address, *length), None, &[]),
            Self::Write {
                peer,
                tag,
                address,
                data,
            } => request(kind::WRITE, (*peer, *tag), (*address, 0), None, data),
            Self::Reply {
                peer,
                tag,
                status,
                data,
            } => request(kind::REPLY, (*peer, *tag), (0, 0), Some(*status), data),
        };
        Packet {
            bytes,
            descriptors: Vec::new(),
        }
    }
}

fn hello(protocol: u32, name: &str) -> Vec<u8> {
    let mut hello = wire::Hello {
        kind: U32::new(kind::HELLO),
        protocol: U32::new(protocol),
        name: [0; MAX_NAME],
    };
    for (to, from) in hello.name.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    hello.as_bytes().to_vec()
}

fn link(peer: PortId, timing: &LinkTiming) -> Packet {
    let link = wire::Link {
        kind: U32::new(kind::LINK),
        peer: U32::new(peer.0),
        latency: U64::new(timing.latency),
        bandwidth: U64::new(timing.bandwidth),
    };
    Packet {
        bytes: link.as_bytes().to_vec(),
        descriptors: vec![timing.meter.clone()],
    }
}

fn number(kind: u32, number: u64) -> Vec<u8> {
    let number = wire::Number {
        kind: U32::new(kind),
        reserved: U32::new(0),
        number: U64::new(number),
    };
    number.as_bytes().to_vec()
}

fn request(
    kind: u32,
    (peer, tag): (PortId, u64),
    (address, length): (u64, u32),
    status: Option<Status>,
    data: &[u8],
) -> Vec<u8> {
    let request = wire::Request {
        kind: U32::new(kind),
        peer: U32::new(peer.0),
        tag: U64::new(tag),
        address: U64::new(address),
        length: U32::new(length),
        status: U32::new(status.map_or(0, |status| status as u32)),
    };
    [request.as_bytes(), data].concat()
}

fn with_windows(kind: u32, peer: PortId, number: u64, windows: &[BarWindow]) -> Packet {
    let head = wire::Windows {
        kind: U32::new(kind),
        peer: U32::new(peer.0),
        number: U64::new(number),
    };
    let mut bytes = head.as_bytes().to_vec();
    let mut descriptors = Vec::new();
    for window in windows {
        let (what, offset) = match &window.backing {
            BarBacking::Lent(descriptor, offset) => {
                descriptors.push(descriptor.clone());
                (backing::LENT, *offset)
            }
            BarBacking::ByMessage => (backing::BY_MESSAGE, 0),
            BarBacking::Gone => (backing::GONE, 0),
        };
        let window = wire::WireWindow {
            address: U64::new(window.address),
            size: U64::new(window.size),
            offset: U64::new(offset),
            claim: U64::new(window.claim),
            bar: U32::new(window.bar.into()),
            backing: U32::new(what),
        };
        bytes.extend_from_slice(window.as_bytes());
    }
    Packet { bytes, descriptors }
}
