//! What adapters say to each other: a header, then payload. All of it is checked by its receiver.
//!
//! A request of a reliable queue pair is answered by a status, then the payload of a read. A datagram is a message, and not
//! answered. A transfer by RDMA is several requests, one for each part. The first one has the length of all, and is answered before
//! the others are sent: a transfer that does not fit moves nothing. The others may arrive in any order.

use peerbar_efa_spec::completion::CompletionStatus;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::responder::Sender;
use super::work_request::Buffer;
use crate::objects::{Gid, QueuePairKind};

/// Payload of a packet at most, which leaves room for a header.
pub(super) const PART_BYTES: u32 = 31 << 10;

const _: () = assert!(PART_BYTES as usize + size_of::<Header>() <= peerbar_fabric::MAX_DATA);
const _: () = assert!(crate::objects::limits::MESSAGE_BYTES <= PART_BYTES);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verb {
    /// Receive this message.
    Message = 0,
    /// Answer with this part of memory.
    Read = 1,
    /// Write this part of memory.
    Write = 2,
    /// All of a write has been done: announce it.
    Announce = 3,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    verb: u8,
    has_immediate: u8,
    source: U16,
    destination: U16,
    reserved: U16,
    qkey: U32,
    immediate: U32,
    key: U32,
    bytes: U32,
    address: U64,
    total: U32,
    reserved2: U32,
}

/// A packet without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) verb: Verb,
    /// Number of the sender's queue pair.
    pub(super) source: u16,
    /// Number of the receiver's queue pair.
    pub(super) destination: u16,
    pub(super) qkey: u32,
    pub(super) immediate: Option<u32>,
    /// The memory that is read or written.
    pub(super) part: Buffer,
    /// The length of all of the transfer, from the address of this part on. Of a part that is not the first, its own.
    pub(super) total: u32,
}

impl Packet {
    /// The packet with this payload.
    pub(super) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            verb: self.verb as u8,
            has_immediate: u8::from(self.immediate.is_some()),
            source: U16::new(self.source),
            destination: U16::new(self.destination),
            reserved: U16::ZERO,
            qkey: U32::new(self.qkey),
            immediate: U32::new(self.immediate.unwrap_or(0)),
            key: U32::new(self.part.key),
            bytes: U32::new(self.part.bytes),
            address: U64::new(self.part.address),
            total: U32::new(self.total),
            reserved2: U32::ZERO,
        };
        let mut packet = Vec::with_capacity(size_of::<Header>() + payload.len());
        packet.extend_from_slice(header.as_bytes());
        packet.extend_from_slice(payload);
        packet
    }

    /// The packet and its payload. `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = Header::read_from_prefix(bytes).ok()?;
        let verb = match header.verb {
            0 => Verb::Message,
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::Announce,
            _ => return None,
        };
        let packet = Self {
            verb,
            source: header.source.get(),
            destination: header.destination.get(),
            qkey: header.qkey.get(),
            immediate: (header.has_immediate != 0).then(|| header.immediate.get()),
            part: Buffer {
                key: header.key.get(),
                address: header.address.get(),
                bytes: header.bytes.get(),
            },
            total: header.total.get(),
        };
        let wanted = match verb {
            Verb::Message | Verb::Write => packet.part.bytes as usize,
            Verb::Read | Verb::Announce => 0,
        };
        let is_possible =
            payload.len() == wanted && (verb == Verb::Announce || packet.part.bytes <= PART_BYTES);
        is_possible.then_some((packet, payload))
    }

    /// Its sender, at that address.
    pub(super) fn sender(&self, gid: Gid, kind: QueuePairKind) -> Sender {
        Sender {
            gid,
            pair: self.source,
            kind,
            qkey: self.qkey,
        }
    }

    /// All of the transfer.
    pub(super) fn whole(&self) -> Buffer {
        Buffer {
            bytes: self.total,
            ..self.part
        }
    }
}

/// An answer with this status.
pub(super) fn answer(status: CompletionStatus) -> Vec<u8> {
    vec![status as u8]
}

/// The status and the payload of an answer. A peer's own failures are none of this side.
pub(super) fn decode_answer(answer: &[u8]) -> (CompletionStatus, &[u8]) {
    use CompletionStatus as S;
    let Some((status, payload)) = answer.split_first() else {
        return (S::RemoteBadStatus, &[]);
    };
    let status = match S::from_number(*status) {
        Some(
            status @ (S::Ok
            | S::RemoteBadAddress
            | S::RemoteAbort
            | S::RemoteBadQueuePair
            | S::RemoteNotReady
            | S::RemoteBadLength
            | S::RemoteUnknownPeer),
        ) => status,
        _ => S::RemoteBadStatus,
    };
    (status, payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(verb: Verb, bytes: u32) -> Packet {
        Packet {
            verb,
            source: 0x1234,
            destination: 0x5678,
            qkey: 9,
            immediate: Some(10),
            part: Buffer {
                key: 11,
                address: u64::MAX,
                bytes,
            },
            total: u32::MAX,
        }
    }

    #[test]
    fn packet_is_read_back_with_its_payload() {
        for (verb, bytes, payload) in [
            (Verb::Message, 3, &[1, 2, 3][..]),
            (Verb::Write, 2, &[4, 5]),
            (Verb::Read, PART_BYTES, &[]),
            (Verb::Announce, u32::MAX, &[]),
        ] {
            let packet = packet(verb, bytes);
            let encoded = packet.encode(payload);
            assert_eq!(Packet::decode(&encoded), Some((packet, payload)));
            let longer = packet.encode(&[payload, &[0]].concat());
            assert_eq!(Packet::decode(&longer), None, "{verb:?}");
        }
        let too_long = packet(Verb::Read, PART_BYTES + 1).encode(&[]);
        assert_eq!(Packet::decode(&too_long), None);
    }

    #[test]
    fn answer_of_a_peer_blames_nothing_on_this_side() {
        for number in 0..=u8::MAX {
            let bytes = [number, 7];
            let (status, payload) = decode_answer(&bytes);
            let is_remote = (CompletionStatus::RemoteBadAddress as u8..).contains(&(status as u8));
            assert!(status == CompletionStatus::Ok || is_remote, "{number}");
            assert_eq!(status == CompletionStatus::Ok, number == 0);
            assert_eq!(payload, [7]);
        }
        let empty = (CompletionStatus::RemoteBadStatus, &[][..]);
        assert_eq!(decode_answer(&[]), empty);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_that_is_possible_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            verb in 0u8..5,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = verb;
            }
            if let Some((packet, payload)) = Packet::decode(&bytes) {
                let encoded = packet.encode(payload);
                prop_assert_eq!(Packet::decode(&encoded), Some((packet, payload)));
            }
        }
    }
}
