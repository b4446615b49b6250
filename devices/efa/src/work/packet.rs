//! The packets between adapters: a header, then payload. The receiver checks everything.
//!
//! In place of payload there may be a slot of the requester's staging buffer, which contains the
//! payload of a write and receives that of a read.
//!
//! The answer to a request of a reliable queue pair is a status, then the payload of a read. A
//! datagram is a message without an answer. An RDMA transfer is several requests, one for each
//! part. The first one has the length of the whole transfer, and is answered before the others are
//! sent, so that a transfer that does not fit moves nothing. The others may arrive in any order.

use peerbar_efa_spec::completion::CompletionStatus;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::request::Buffer;
use super::staging::{SLOT_BYTES, SlotName};

/// Maximum payload of a packet, which leaves room for a header.
pub(crate) const PART_BYTES: u32 = 31 << 10;

const _: () = assert!(PART_BYTES as usize + size_of::<Header>() <= peerbar_fabric::MAX_DATA);
const _: () = assert!(crate::limits::MESSAGE_BYTES <= PART_BYTES);

/// The request of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    /// Receive this message.
    #[default]
    Message = 0,
    /// Answer with this part of memory.
    Read = 1,
    /// Write this part of memory.
    Write = 2,
    /// All of a write has been done: announce it.
    Announce = 3,
    /// Take this staging buffer, whose slots later requests name.
    Share = 4,
    /// All of a read has been done: count it, as the answers to its parts have asked for.
    CountRead = 5,
    /// The same for a write without immediate data.
    CountWrite = 6,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    verb: u8,
    has_immediate: u8,
    source: U16,
    destination: U16,
    is_staged: u8,
    reserved: u8,
    qkey: U32,
    immediate: U32,
    key: U32,
    bytes: U32,
    address: U64,
    total: U32,
    reserved2: U32,
}

/// A packet without its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) verb: Verb,
    /// Number of the sender's queue pair.
    pub(crate) source: u16,
    /// Number of the receiver's queue pair.
    pub(crate) destination: u16,
    pub(crate) qkey: u32,
    pub(crate) immediate: Option<u32>,
    /// `true` if the payload is in a slot, or belongs in one.
    pub(crate) is_staged: bool,
    /// The memory to read or write. For a staging buffer, the address is its number.
    pub(crate) part: Buffer,
    /// The length of the whole transfer, from the address of this part on. In later parts, the
    /// part's own length.
    pub(crate) total: u32,
}

impl Packet {
    /// Returns the packet with this payload.
    pub(crate) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            verb: self.verb as u8,
            has_immediate: u8::from(self.immediate.is_some()),
            source: U16::new(self.source),
            destination: U16::new(self.destination),
            is_staged: u8::from(self.is_staged),
            reserved: 0,
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

    /// Returns the packet and its payload, or `None` if it is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = Header::read_from_prefix(bytes).ok()?;
        let verb = match header.verb {
            0 => Verb::Message,
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::Announce,
            4 => Verb::Share,
            5 => Verb::CountRead,
            6 => Verb::CountWrite,
            _ => return None,
        };
        let packet = Self {
            verb,
            source: header.source.get(),
            destination: header.destination.get(),
            qkey: header.qkey.get(),
            immediate: (header.has_immediate != 0).then(|| header.immediate.get()),
            is_staged: header.is_staged != 0,
            part: Buffer {
                key: header.key.get(),
                address: header.address.get(),
                bytes: header.bytes.get(),
            },
            total: header.total.get(),
        };
        let bytes = packet.part.bytes;
        let is_possible = match (verb, packet.is_staged) {
            (Verb::Message | Verb::Write, false) => {
                bytes <= PART_BYTES && payload.len() == bytes as usize
            }
            (Verb::Read, false) => bytes <= PART_BYTES && payload.is_empty(),
            (Verb::Read | Verb::Write, true) => {
                bytes <= SLOT_BYTES && payload.len() == size_of::<SlotName>()
            }
            (_, true) => false,
            (_, false) => payload.is_empty(),
        };
        is_possible.then_some((packet, payload))
    }

    /// Returns the buffer of the whole transfer.
    pub(crate) fn whole(&self) -> Buffer {
        Buffer {
            bytes: self.total,
            ..self.part
        }
    }
}

/// The reason why a packet is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It failed with this status.
    Status(CompletionStatus),
    /// This side does not have the staging buffer (any more): payload must come in packets for a
    /// while.
    NotStaged,
}

impl From<CompletionStatus> for Refusal {
    fn from(status: CompletionStatus) -> Self {
        Self::Status(status)
    }
}

/// The answer to a packet whose staging buffer is missing. No status has this number, or the one
/// below it.
const NOT_STAGED: u8 = u8::MAX;
/// The answer to a part that was executed, of a transfer that must be counted once it has ended.
const IS_COUNTED: u8 = u8::MAX - 1;

/// Returns the answer to a packet that was executed, with this payload.
pub(crate) fn done(payload: &[u8]) -> Vec<u8> {
    let mut answer = vec![CompletionStatus::Ok as u8];
    answer.extend_from_slice(payload);
    answer
}

/// Asks the requester, in an answer, to report when the transfer has ended.
pub(crate) fn ask_to_count(answer: &mut [u8]) {
    let status = answer.first_mut();
    if let Some(status) = status.filter(|status| **status == CompletionStatus::Ok as u8) {
        *status = IS_COUNTED;
    }
}

/// Returns `true` if the requester must report when the transfer has ended.
pub(crate) fn is_to_be_counted(answer: &[u8]) -> bool {
    answer.first() == Some(&IS_COUNTED)
}

/// Returns the answer to a packet that was refused.
pub(crate) fn refused(refusal: Refusal) -> Vec<u8> {
    match refusal {
        Refusal::Status(status) => vec![status as u8],
        Refusal::NotStaged => vec![NOT_STAGED],
    }
}

/// Returns the payload of an answer, or the reason for its absence. A status that describes the
/// peer's own failures is not passed on as one of this side.
pub(crate) fn decode_answer(answer: &[u8]) -> Result<&[u8], Refusal> {
    use CompletionStatus as S;
    let Some((status, payload)) = answer.split_first() else {
        return Err(S::RemoteBadStatus.into());
    };
    match *status {
        NOT_STAGED => return Err(Refusal::NotStaged),
        IS_COUNTED => return Ok(payload),
        _ => {}
    }
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
    match status {
        S::Ok => Ok(payload),
        status => Err(status.into()),
    }
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
            is_staged: false,
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
            (Verb::CountRead, 0, &[]),
            (Verb::CountWrite, 0, &[]),
        ] {
            let packet = packet(verb, bytes);
            let encoded = packet.encode(payload);
            assert_eq!(Packet::decode(&encoded), Some((packet, payload)));
            let longer = packet.encode(&[payload, &[0]].concat());
            assert_eq!(Packet::decode(&longer), None, "{verb:?}");
        }
        for verb in [Verb::Write, Verb::Read] {
            let staged = |bytes| Packet {
                is_staged: true,
                ..packet(verb, bytes)
            };
            let (whole, slot) = (staged(SLOT_BYTES), SlotName::new(5, 6));
            let encoded = whole.encode(slot.as_bytes());
            assert_eq!(Packet::decode(&encoded), Some((whole, slot.as_bytes())));
            assert_eq!(Packet::decode(&whole.encode(&[0; 7])), None);
            let too_long = staged(SLOT_BYTES + 1).encode(slot.as_bytes());
            assert_eq!(Packet::decode(&too_long), None);
        }
        let too_long = packet(Verb::Read, PART_BYTES + 1).encode(&[]);
        assert_eq!(Packet::decode(&too_long), None);
    }

    #[test]
    fn answer_of_a_peer_blames_nothing_on_this_side() {
        for number in 0..=u8::MAX {
            let bytes = [number, 7];
            let first_remote = CompletionStatus::RemoteBadAddress as u8;
            match decode_answer(&bytes) {
                Ok(payload) => {
                    assert_eq!(payload, [7]);
                    assert_eq!(is_to_be_counted(&bytes), number == IS_COUNTED);
                    assert!([0, IS_COUNTED].contains(&number), "{number}");
                }
                Err(Refusal::NotStaged) => assert_eq!(number, NOT_STAGED),
                Err(Refusal::Status(status)) => assert!(status as u8 >= first_remote, "{number}"),
            }
        }
        let empty = Err(CompletionStatus::RemoteBadStatus.into());
        assert_eq!(decode_answer(&[]), empty);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_that_is_possible_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            verb in 0u8..8,
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
