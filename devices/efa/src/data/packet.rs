//! What adapters say to each other: a header, then payload. All of it is checked by its receiver.
//!
//! In place of payload there may be a loan: the slot of its word, and its ranges. Its receiver copies from there, if the word permits it. What
//! reads that way gives the memory back, and learns only then whether it was intact.
//!
//! A request of a reliable queue pair is answered by a status, then the payload of a read. A datagram is a message, and not
//! answered. A transfer by RDMA is several requests, one for each part. The first one has the length of all, and is answered before
//! the others are sent: a transfer that does not fit moves nothing. The others may arrive in any order.

use peerbar_dma::LoanId;
use peerbar_efa_spec::completion::CompletionStatus;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::responder::Sender;
use super::work_request::Buffer;
use crate::objects::{Gid, QueuePairKind};

/// Payload of a packet at most, which leaves room for a header.
pub(super) const PART_BYTES: u32 = 31 << 10;

/// Bytes of one loan at most, and its ranges.
pub(super) const LENT_BYTES: u32 = 1 << 20;
pub(super) const MOST_RANGES: usize = 1024;

const _: () = {
    let loan = size_of::<LentWord>() + MOST_RANGES * size_of::<LentRange>();
    let most = loan + size_of::<Header>() + size_of::<u64>();
    assert!(most <= peerbar_fabric::MAX_DATA);
};
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
    /// Know this file, whose memory is going to be lent, and the words of all loans, of which the key is the number.
    Show = 4,
    /// What was lent for a read has been copied.
    Return = 5,
    /// All of a read has been done: count it, as the answers to its parts have asked for.
    CountRead = 6,
    /// The same of a write without immediate data.
    CountWrite = 7,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    verb: u8,
    has_immediate: u8,
    source: U16,
    destination: U16,
    is_lent: u8,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) verb: Verb,
    /// Number of the sender's queue pair.
    pub(super) source: u16,
    /// Number of the receiver's queue pair.
    pub(super) destination: u16,
    pub(super) qkey: u32,
    pub(super) immediate: Option<u32>,
    /// The payload of a write is lent, or that of a read is to be.
    pub(super) is_lent: bool,
    /// The memory that is read or written. Of a file or a loan, its number is the address.
    pub(super) part: Buffer,
    /// The length of all of the transfer, from the address of this part on. Of a part that is not the first, its own.
    pub(super) total: u32,
}

/// A range of a file that is lent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(super) struct LentRange {
    file: U32,
    bytes: U32,
    offset: U64,
}

impl LentRange {
    pub(super) fn new(file: u32, offset: u64, bytes: u32) -> Self {
        Self {
            file: U32::new(file),
            bytes: U32::new(bytes),
            offset: U64::new(offset),
        }
    }

    /// File, offset and bytes.
    pub(super) fn parts(&self) -> (u32, u64, u32) {
        (self.file.get(), self.offset.get(), self.bytes.get())
    }

    /// Whether this is where the next byte is.
    pub(super) fn is_followed_by(&self, file: u32, offset: u64) -> bool {
        let (own, start, bytes) = self.parts();
        own == file && start.checked_add(bytes.into()) == Some(offset)
    }

    /// Makes it longer. `None` if it cannot be.
    pub(super) fn extend(&mut self, bytes: u32) -> Option<()> {
        self.bytes = U32::new(self.bytes.get().checked_add(bytes)?);
        Some(())
    }

    /// The ranges, which have `bytes` bytes in all and none of which is empty. `None` if they are others.
    fn decode_all(data: &[u8], bytes: u32) -> Option<Vec<Self>> {
        let ranges = <[Self]>::ref_from_bytes(data).ok()?;
        let mut lens = ranges.iter().map(|range| u64::from(range.parts().2));
        let sum: u64 = lens.clone().sum();
        let is_right = ranges.len() <= MOST_RANGES && sum == u64::from(bytes);
        (is_right && lens.all(|len| len > 0)).then(|| ranges.to_vec())
    }
}

/// Where the word of a loan is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct LentWord {
    words: U32,
    slot: U32,
    generation: U32,
    reserved: U32,
}

/// Memory that is lent for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LentPart {
    /// The number of the words that were shown, and the slot of the loan's word.
    pub(super) word: (u32, LoanId),
    pub(super) ranges: Vec<LentRange>,
}

impl LentPart {
    /// As payload.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (words, id) = self.word;
        let word = LentWord {
            words: U32::new(words),
            slot: U32::new(id.slot),
            generation: U32::new(id.generation),
            reserved: U32::ZERO,
        };
        [word.as_bytes(), self.ranges.as_bytes()].concat()
    }

    /// A loan of `bytes` bytes. `None` if it makes no sense.
    pub(super) fn decode(data: &[u8], bytes: u32) -> Option<Self> {
        let (word, ranges) = LentWord::read_from_prefix(data).ok()?;
        let id = LoanId {
            slot: word.slot.get(),
            generation: word.generation.get(),
        };
        Some(Self {
            word: (word.words.get(), id),
            ranges: LentRange::decode_all(ranges, bytes)?,
        })
    }
}

/// The word of the lease under which a file is used that is shown. The file that it is in comes with that.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(super) struct ShownLease {
    offset: U64,
    generation: U32,
    reserved: U32,
}

impl ShownLease {
    /// The word is at this offset, and has this value until the lease ends.
    pub(super) fn new(offset: u64, generation: u32) -> Self {
        Self {
            offset: U64::new(offset),
            generation: U32::new(generation),
            reserved: U32::ZERO,
        }
    }

    /// Where the word is, and its value until the lease ends.
    pub(super) fn parts(&self) -> (u64, u32) {
        (self.offset.get(), self.generation.get())
    }
}

impl Packet {
    /// A packet that is about no queue pair, with the number of a file or loan.
    pub(super) fn of_adapter(verb: Verb, number: u64, bytes: u32) -> Self {
        Self {
            verb,
            source: 0,
            destination: 0,
            qkey: 0,
            immediate: None,
            is_lent: false,
            part: Buffer {
                key: 0,
                address: number,
                bytes,
            },
            total: bytes,
        }
    }

    /// The packet with this payload.
    pub(super) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            verb: self.verb as u8,
            has_immediate: u8::from(self.immediate.is_some()),
            source: U16::new(self.source),
            destination: U16::new(self.destination),
            is_lent: u8::from(self.is_lent),
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

    /// The packet and its payload. `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = Header::read_from_prefix(bytes).ok()?;
        let verb = match header.verb {
            0 => Verb::Message,
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::Announce,
            4 => Verb::Show,
            5 => Verb::Return,
            6 => Verb::CountRead,
            7 => Verb::CountWrite,
            _ => return None,
        };
        let packet = Self {
            verb,
            source: header.source.get(),
            destination: header.destination.get(),
            qkey: header.qkey.get(),
            immediate: (header.has_immediate != 0).then(|| header.immediate.get()),
            is_lent: header.is_lent != 0,
            part: Buffer {
                key: header.key.get(),
                address: header.address.get(),
                bytes: header.bytes.get(),
            },
            total: header.total.get(),
        };
        let bytes = packet.part.bytes;
        let is_possible = match (verb, packet.is_lent) {
            (Verb::Message | Verb::Write, false) => {
                bytes <= PART_BYTES && payload.len() == bytes as usize
            }
            (Verb::Write, true) => {
                bytes <= LENT_BYTES && LentPart::decode(payload, bytes).is_some()
            }
            (Verb::Read, false) => bytes <= PART_BYTES && payload.is_empty(),
            (Verb::Read, true) => bytes <= LENT_BYTES && payload.is_empty(),
            (_, true) => false,
            (Verb::Show, false) if payload.len() == size_of::<ShownLease>() => true,
            (_, false) => payload.is_empty(),
        };
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

/// Why a packet is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It cannot be.
    Status(CompletionStatus),
    /// The other side cannot use what is lent, or lends nothing: all payload is to come in packets for a while.
    NotLent,
    /// The memory of this part is not lent, or not any more: its payload is to come in packets.
    LoanOver,
}

impl From<CompletionStatus> for Refusal {
    fn from(status: CompletionStatus) -> Self {
        Self::Status(status)
    }
}

/// The answers of packets whose memory is not lent. No status has these numbers.
const NOT_LENT: u8 = u8::MAX;
const LOAN_OVER: u8 = u8::MAX - 1;
/// The answer of a part that was carried out, of a transfer that is to be counted once all of it is.
const IS_COUNTED: u8 = u8::MAX - 2;

/// The answer to a packet that was carried out, with this payload.
pub(super) fn done(payload: &[u8]) -> Vec<u8> {
    let mut answer = vec![CompletionStatus::Ok as u8];
    answer.extend_from_slice(payload);
    answer
}

/// Has the requester say when all of the transfer is done.
pub(super) fn ask_to_count(answer: &mut [u8]) {
    let status = answer.first_mut();
    if let Some(status) = status.filter(|status| **status == CompletionStatus::Ok as u8) {
        *status = IS_COUNTED;
    }
}

/// Whether the requester is to say when all of the transfer is done.
pub(super) fn is_to_be_counted(answer: &[u8]) -> bool {
    answer.first() == Some(&IS_COUNTED)
}

/// The answer to a packet that was not.
pub(super) fn refused(refusal: Refusal) -> Vec<u8> {
    match refusal {
        Refusal::Status(status) => vec![status as u8],
        Refusal::NotLent => vec![NOT_LENT],
        Refusal::LoanOver => vec![LOAN_OVER],
    }
}

/// The answer to a read: the number of a loan, and its memory.
pub(super) fn lent(loan: u64, part: &LentPart) -> Vec<u8> {
    let mut answer = done(&loan.to_le_bytes());
    answer.extend(part.encode());
    answer
}

/// The number of a loan of `bytes` bytes for a read, and its memory. `None` if they make no sense.
pub(super) fn decode_lent(payload: &[u8], bytes: u32) -> Option<(u64, LentPart)> {
    let (loan, part) = payload.split_first_chunk()?;
    let part = LentPart::decode(part, bytes)?;
    Some((u64::from_le_bytes(*loan), part))
}

/// The payload of an answer, or why there is none. A peer's own failures are none of this side.
pub(super) fn decode_answer(answer: &[u8]) -> Result<&[u8], Refusal> {
    use CompletionStatus as S;
    let Some((status, payload)) = answer.split_first() else {
        return Err(S::RemoteBadStatus.into());
    };
    match *status {
        NOT_LENT => return Err(Refusal::NotLent),
        LOAN_OVER => return Err(Refusal::LoanOver),
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
            is_lent: false,
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
        let lent = Packet {
            is_lent: true,
            ..packet(Verb::Write, LENT_BYTES)
        };
        let id = LoanId {
            slot: 5,
            generation: 6,
        };
        let mut part = LentPart {
            word: (7, id),
            ranges: vec![
                LentRange::new(1, 2, LENT_BYTES - 1),
                LentRange::new(3, 4, 1),
            ],
        };
        let payload = part.encode();
        let encoded = lent.encode(&payload);
        assert_eq!(Packet::decode(&encoded), Some((lent, &payload[..])));
        assert_eq!(LentPart::decode(&payload, LENT_BYTES), Some(part.clone()));
        part.ranges.push(LentRange::new(3, 4, 0));
        assert_eq!(Packet::decode(&lent.encode(&part.encode())), None);
        part.ranges.truncate(1);
        assert_eq!(Packet::decode(&lent.encode(&part.encode())), None);
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
                Err(Refusal::NotLent) => assert_eq!(number, NOT_LENT),
                Err(Refusal::LoanOver) => assert_eq!(number, LOAN_OVER),
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
            verb in 0u8..9,
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
