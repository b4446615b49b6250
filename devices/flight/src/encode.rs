//! A record in 64 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 7:0 | sequence number, from 1 on |
//! | 15:8 | CLOCK_MONOTONIC in ns |
//! | 16 | kind |
//! | 19:17 | three small numbers, by kind |
//! | 23:20 | CRC-32C of bytes 19:0 and 63:24 |
//! | 63:24 | five words of 8 bytes, by kind |
//!
//! | kind | small numbers | words |
//! | --- | --- | --- |
//! | 1 map | access (1 read, 2 write), backing (0 device, 1 RAM, 2 RAM through the client) | IOVA, last IOVA, st_dev, st_ino, offset |
//! | 2 unmap | | IOVA, last IOVA |
//! | 3 DMA | purpose, direction, outcome | address, length, origin, route + completer << 8 + errno << 16, ns that it took |
//! | 4 begin | opcode, flags | origin |
//! | 5 end | | origin, status |
//! | 6 window | BAR, or 255 for the CMB and 254 for the PMR, memory | address, length |
//! | 7 peer's window | 0, memory | address, length, peer, claim |
//! | 8 peer leaves | | peer |
//! | 9 bus mastering, 10 reset, 11 client | 1 on, 0 off | |
//! | 12 injected fault | | origin, rule, match |
//! | 13 doorbell | 1 if there is a vector | origin, tail, entries added, entries waiting, vector |
//! | 14 interrupt | | vector |
//! | 15 register written by a peer | BAR | peer, offset, length, value |
//!
//! An origin is 0 for the device itself, otherwise queue << 32 with bit 62 set, and if it is a
//! command, its number with bit 63 set. Memory is 0 registers, 1 memory, 2 pages, 3 gone.

use peerbar_dma_log::{Completer, Direction, Origin, Purpose, Route};
use peerbar_pci::{BusAddress, Iova, Range};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::event::{
    Backing, Dma, DmaOutcome, DoorbellEvent, Event, FileSpan, IgnoredWrite, Injection, Mapping,
    Operation, PeerWindowEvent, Record, RegisterWrite, WindowEvent, WindowId, WindowKind,
};

const CMB: u8 = 0xff;
const PMR: u8 = 0xfe;
const HAS_QUEUE: u64 = 1 << 62;
const HAS_COMMAND: u64 = 1 << 63;

/// A record as it is in the file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Raw {
    sequence: U64,
    nanos: U64,
    kind: u8,
    small: [u8; 3],
    check: U32,
    words: [U64; 5],
}

const _: () = assert!(size_of::<Raw>() == 64);

impl Raw {
    /// The record as it is in the file.
    pub(crate) fn new(record: &Record) -> Self {
        let (kind, small, words) = encode(&record.event);
        let mut raw = Self {
            sequence: record.sequence.into(),
            nanos: record.nanos.into(),
            kind,
            small,
            check: U32::ZERO,
            words: words.map(U64::new),
        };
        raw.check = raw.sum().into();
        raw
    }

    /// The record, if it is one and whole.
    pub(crate) fn decode(&self) -> Option<Record> {
        if self.sequence.get() == 0 || self.check.get() != self.sum() {
            return None;
        }
        Some(Record {
            sequence: self.sequence.get(),
            nanos: self.nanos.get(),
            event: decode(self.kind, self.small, self.words.map(U64::get))?,
        })
    }

    /// Returns `true` if the slot has never been used, or is free.
    pub(crate) fn is_free(&self) -> bool {
        self.as_bytes().iter().all(|byte| *byte == 0)
    }

    fn sum(&self) -> u32 {
        let unchecked = Self {
            check: U32::ZERO,
            ..*self
        };
        crc32c::crc32c(unchecked.as_bytes())
    }
}

fn encode(event: &Event) -> (u8, [u8; 3], [u64; 5]) {
    match *event {
        Event::Map(mapping) => encode_mapping(&mapping),
        Event::Unmap(range) => (2, [0; 3], [range.first().0, range.last().0, 0, 0, 0]),
        Event::Dma(dma) => encode_dma(&dma),
        Event::Begin { origin, operation } => {
            let Operation { opcode, flags } = operation;
            (4, [opcode, flags, 0], [from_origin(origin), 0, 0, 0, 0])
        }
        Event::End { origin, status } => (5, [0; 3], [from_origin(origin), status.into(), 0, 0, 0]),
        Event::Window(window) => {
            let id = match window.id {
                WindowId::Cmb => CMB,
                WindowId::Pmr => PMR,
                WindowId::Bar(bar) => bar,
            };
            let small = [id, window.memory as u8, 0];
            let range = window.range;
            let address = range.map_or(0, |range| range.first().0);
            let size = range.map_or(0, |range| range.size());
            (6, small, [address, size, 0, 0, 0])
        }
        Event::PeerWindow(window) => {
            let words = [
                window.range.first().0,
                window.range.size(),
                window.peer.into(),
                window.claim,
                0,
            ];
            (7, [0, window.memory as u8, 0], words)
        }
        Event::PeerLeaves(peer) => (8, [0; 3], [peer.into(), 0, 0, 0, 0]),
        Event::BusMaster(on) => (9, [on.into(), 0, 0], [0; 5]),
        Event::Reset(on) => (10, [on.into(), 0, 0], [0; 5]),
        Event::Client(on) => (11, [on.into(), 0, 0], [0; 5]),
        Event::Injected(injection) => {
            let origin = from_origin(injection.origin);
            let words = [origin, injection.rule.into(), injection.matches, 0, 0];
            (12, [0; 3], words)
        }
        Event::Doorbell(doorbell) => encode_doorbell(&doorbell),
        Event::Interrupt { vector } => (14, [0; 3], [vector.into(), 0, 0, 0, 0]),
        Event::RegisterWrite(write) => {
            let words = [
                write.peer.into(),
                write.offset,
                write.len.into(),
                write.value,
                0,
            ];
            (15, [write.bar, 0, 0], words)
        }
        Event::IgnoredWrite(write) => {
            let words = [write.offset, write.len.into(), 0, 0, 0];
            (16, [write.bar, 0, 0], words)
        }
    }
}

fn encode_doorbell(doorbell: &DoorbellEvent) -> (u8, [u8; 3], [u64; 5]) {
    let words = [
        from_origin(Origin::Queue(doorbell.queue)),
        doorbell.tail.into(),
        doorbell.added.into(),
        doorbell.waiting.into(),
        doorbell.vector.unwrap_or(0).into(),
    ];
    (13, [doorbell.vector.is_some().into(), 0, 0], words)
}

fn encode_mapping(mapping: &Mapping) -> (u8, [u8; 3], [u64; 5]) {
    let nothing = FileSpan {
        device: 0,
        inode: 0,
        offset: 0,
    };
    let access = u8::from(mapping.readable) | u8::from(mapping.writable) << 1;
    let (backing, span) = match mapping.backing {
        Backing::Device => (0, nothing),
        Backing::Ram(span) => (1, span),
        Backing::RemoteRam(span) => (2, span),
    };
    let words = [
        mapping.range.first().0,
        mapping.range.last().0,
        span.device,
        span.inode,
        span.offset,
    ];
    (1, [access, backing, 0], words)
}

fn encode_dma(dma: &Dma) -> (u8, [u8; 3], [u64; 5]) {
    let (outcome, errno) = from_outcome(dma.outcome);
    let way = dma.route as u64 | (dma.completer as u64) << 8 | u64::from(errno) << 16;
    let small = [dma.purpose as u8, dma.direction as u8, outcome];
    let words = [
        dma.address.0,
        dma.len,
        from_origin(dma.origin),
        way,
        dma.took,
    ];
    (3, small, words)
}

fn decode(kind: u8, small: [u8; 3], words: [u64; 5]) -> Option<Event> {
    let [first, second, _] = small;
    let [one, two, three, four, _] = words;
    Some(match kind {
        1 => Event::Map(decode_mapping(small, words)?),
        2 => Event::Unmap(Range::from_bounds(Iova(one), Iova(two))?),
        3 => Event::Dma(decode_dma(small, words)?),
        4 => Event::Begin {
            origin: to_origin(one)?,
            operation: Operation {
                opcode: first,
                flags: second,
            },
        },
        5 => Event::End {
            origin: to_origin(one)?,
            status: two.try_into().ok()?,
        },
        6 => Event::Window(WindowEvent {
            id: match first {
                CMB => WindowId::Cmb,
                PMR => WindowId::Pmr,
                bar => WindowId::Bar(bar),
            },
            range: Range::new(BusAddress(one), two),
            memory: WindowKind::from_repr(second)?,
        }),
        7 => Event::PeerWindow(PeerWindowEvent {
            peer: three.try_into().ok()?,
            range: Range::new(BusAddress(one), two)?,
            claim: four,
            memory: WindowKind::from_repr(second)?,
        }),
        8 => Event::PeerLeaves(one.try_into().ok()?),
        9 => Event::BusMaster(first == 1),
        10 => Event::Reset(first == 1),
        11 => Event::Client(first == 1),
        12 => Event::Injected(Injection {
            origin: to_origin(one)?,
            rule: two.try_into().ok()?,
            matches: three,
        }),
        13 => Event::Doorbell(decode_doorbell(first, words)?),
        14 => Event::Interrupt {
            vector: one.try_into().ok()?,
        },
        15 => Event::RegisterWrite(RegisterWrite {
            peer: one.try_into().ok()?,
            bar: first,
            offset: two,
            len: three.try_into().ok()?,
            value: four,
        }),
        16 => Event::IgnoredWrite(IgnoredWrite {
            bar: first,
            offset: one,
            len: two.try_into().ok()?,
        }),
        _ => return None,
    })
}

fn decode_doorbell(
    has_vector: u8,
    [origin, tail, added, waiting, vector]: [u64; 5],
) -> Option<DoorbellEvent> {
    let Origin::Queue(queue) = to_origin(origin)? else {
        return None;
    };
    let vector: u16 = vector.try_into().ok()?;
    Some(DoorbellEvent {
        queue,
        tail: tail.try_into().ok()?,
        added: added.try_into().ok()?,
        waiting: waiting.try_into().ok()?,
        vector: (has_vector == 1).then_some(vector),
    })
}

fn decode_mapping(
    [access, backing, _]: [u8; 3],
    [iova, last, device, inode, offset]: [u64; 5],
) -> Option<Mapping> {
    let span = FileSpan {
        device,
        inode,
        offset,
    };
    Some(Mapping {
        range: Range::from_bounds(Iova(iova), Iova(last))?,
        readable: access & 1 != 0,
        writable: access & 2 != 0,
        backing: match backing {
            0 => Backing::Device,
            1 => Backing::Ram(span),
            2 => Backing::RemoteRam(span),
            _ => return None,
        },
    })
}

fn decode_dma(
    [purpose, direction, outcome]: [u8; 3],
    [address, len, origin, way, took]: [u64; 5],
) -> Option<Dma> {
    let [route, completer, errno_low, errno_high, ..] = way.to_le_bytes();
    Some(Dma {
        origin: to_origin(origin)?,
        purpose: Purpose::from_repr(purpose)?,
        direction: Direction::from_repr(direction)?,
        address: Iova(address),
        len,
        route: Route::from_repr(route)?,
        completer: Completer::from_repr(completer)?,
        outcome: to_outcome(outcome, u16::from_le_bytes([errno_low, errno_high]))?,
        took,
    })
}

fn from_origin(origin: Origin) -> u64 {
    match origin {
        Origin::Device => 0,
        Origin::Queue(queue) => HAS_QUEUE | u64::from(queue) << 32,
        Origin::Command { queue, command } => {
            HAS_COMMAND | HAS_QUEUE | u64::from(queue) << 32 | u64::from(command)
        }
    }
}

fn to_origin(word: u64) -> Option<Origin> {
    let [c0, c1, c2, c3, q0, q1, ..] = word.to_le_bytes();
    let queue = u16::from_le_bytes([q0, q1]);
    let command = u32::from_le_bytes([c0, c1, c2, c3]);
    match (word & HAS_QUEUE != 0, word & HAS_COMMAND != 0) {
        (false, false) => Some(Origin::Device),
        (true, false) => Some(Origin::Queue(queue)),
        (true, true) => Some(Origin::Command { queue, command }),
        (false, true) => None,
    }
}

/// Outcomes in the order of their numbers, the one with an errno aside.
const OUTCOMES: [DmaOutcome; 14] = [
    DmaOutcome::Done,
    DmaOutcome::NotMaster,
    DmaOutcome::OwnRegisters,
    DmaOutcome::NoPage,
    DmaOutcome::Wraps,
    DmaOutcome::ClientGone,
    DmaOutcome::ClientTimedOut,
    DmaOutcome::PeerUnsupported,
    DmaOutcome::PeerGone,
    DmaOutcome::PeerTimedOut,
    DmaOutcome::Forbidden,
    DmaOutcome::NoMemory,
    DmaOutcome::Injected,
    DmaOutcome::Unaligned,
];
const CLIENT_REFUSED: u8 = 0xff;

fn from_outcome(outcome: DmaOutcome) -> (u8, u16) {
    if let DmaOutcome::ClientRefused(errno) = outcome {
        return (CLIENT_REFUSED, errno);
    }
    let mut numbered = (0..).zip(OUTCOMES);
    let number = numbered.find(|(_, known)| *known == outcome);
    (number.map_or(u8::MAX - 1, |(number, _)| number), 0)
}

fn to_outcome(number: u8, errno: u16) -> Option<DmaOutcome> {
    match number {
        CLIENT_REFUSED => Some(DmaOutcome::ClientRefused(errno)),
        _ => OUTCOMES.get(usize::from(number)).copied(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn origins() -> impl Strategy<Value = Origin> {
        prop_oneof![
            Just(Origin::Device),
            any::<u16>().prop_map(Origin::Queue),
            any::<(u16, u32)>().prop_map(|(queue, command)| Origin::command(queue, command)),
        ]
    }

    fn mappings() -> impl Strategy<Value = Event> {
        let spans = any::<[u64; 3]>().prop_map(|[device, inode, offset]| FileSpan {
            device,
            inode,
            offset,
        });
        let backings = (spans, 0..3).prop_map(|(span, kind)| match kind {
            0 => Backing::Device,
            1 => Backing::Ram(span),
            _ => Backing::RemoteRam(span),
        });
        (any::<[u64; 2]>(), any::<[bool; 2]>(), backings).prop_map(
            |([one, two], [readable, writable], backing)| {
                Event::Map(Mapping {
                    range: between(one, two),
                    readable,
                    writable,
                    backing,
                })
            },
        )
    }

    /// Returns the range between two addresses in any order.
    fn between(one: u64, two: u64) -> Range<Iova> {
        Range::from_bounds(Iova(one.min(two)), Iova(one.max(two))).unwrap()
    }

    fn dmas() -> impl Strategy<Value = Event> {
        let outcomes = prop_oneof![
            select(&OUTCOMES[..]),
            any::<u16>().prop_map(DmaOutcome::ClientRefused)
        ];
        let purposes = select(vec![Purpose::Command, Purpose::List, Purpose::Payload]);
        let directions = select(vec![Direction::Read, Direction::Write]);
        let routes = select(vec![Route::OwnBar, Route::GuestRam, Route::Refused]);
        let completers = select(vec![Completer::None, Completer::Unknown]);
        let words = (purposes, directions, routes, completers);
        (origins(), words, outcomes, any::<[u64; 3]>()).prop_map(
            |(origin, (purpose, direction, route, completer), outcome, [address, len, took])| {
                Event::Dma(Dma {
                    origin,
                    purpose,
                    direction,
                    address: Iova(address),
                    len,
                    route,
                    completer,
                    outcome,
                    took,
                })
            },
        )
    }

    fn others() -> impl Strategy<Value = Event> {
        let memories = select(vec![
            WindowKind::Registers,
            WindowKind::Memory,
            WindowKind::Pages,
            WindowKind::Gone,
        ]);
        let numbers = (any::<[u64; 3]>(), any::<u32>(), any::<u16>(), any::<bool>());
        (origins(), memories, numbers, 0..13).prop_map(
            |(origin, memory, ([one, two, three], number, half, on), kind)| match kind {
                0 => Event::Unmap(between(one, two)),
                1 => Event::Begin {
                    origin,
                    operation: Operation {
                        opcode: half.to_le_bytes()[0],
                        flags: half.to_le_bytes()[1],
                    },
                },
                2 => Event::End {
                    origin,
                    status: half,
                },
                3 => Event::Window(WindowEvent {
                    id: match on {
                        true => WindowId::Cmb,
                        false => WindowId::Bar(number.to_le_bytes()[0] & 7),
                    },
                    range: Range::new(BusAddress(one), two),
                    memory,
                }),
                4 => Event::PeerWindow(PeerWindowEvent {
                    peer: number,
                    range: Range::new(BusAddress(one), two % (u64::MAX - one) + 1).unwrap(),
                    claim: three,
                    memory,
                }),
                5 => Event::PeerLeaves(number),
                6 => Event::BusMaster(on),
                7 => Event::Reset(on),
                8 => Event::Injected(Injection {
                    rule: number,
                    matches: one,
                    origin,
                }),
                9 => Event::Doorbell(DoorbellEvent {
                    queue: half,
                    tail: number,
                    added: number / 2,
                    waiting: number / 3,
                    vector: on.then_some(half),
                }),
                10 => Event::Interrupt { vector: half },
                11 => Event::RegisterWrite(RegisterWrite {
                    peer: number,
                    bar: half.to_le_bytes()[0],
                    offset: one,
                    len: number / 2,
                    value: two,
                }),
                12 => Event::IgnoredWrite(IgnoredWrite {
                    bar: half.to_le_bytes()[0],
                    offset: one,
                    len: number,
                }),
                _ => Event::Client(on),
            },
        )
    }

    proptest! {
        #[test]
        fn every_record_survives_and_none_that_was_changed(
            sequence in 1..=u64::MAX,
            nanos in any::<u64>(),
            event in prop_oneof![mappings(), dmas(), others()],
            (at, change) in (0usize..64, 1u8..),
        ) {
            let record = Record { sequence, nanos, event };
            let raw = Raw::new(&record);
            prop_assert_eq!(raw.decode(), Some(record));
            let mut bytes: [u8; 64] = raw.as_bytes().try_into().unwrap();
            bytes[at] ^= change;
            prop_assert_eq!(Raw::read_from_bytes(&bytes).unwrap().decode(), None);
        }

        #[test]
        fn no_bytes_are_too_strange(mut raw in any::<[u8; 64]>(), kind in 0u8..17) {
            raw[16] = kind;
            let mut raw = Raw::read_from_bytes(&raw).unwrap();
            raw.check = raw.sum().into();
            if let Some(record) = raw.decode() {
                prop_assert_eq!(Raw::new(&record).decode(), Some(record));
            }
        }
    }

    #[test]
    fn a_free_slot_is_no_record() {
        let raw = Raw::read_from_bytes(&[0; 64]).unwrap();
        assert!(raw.is_free());
        assert_eq!(raw.decode(), None);
    }

    #[test]
    fn a_record_is_laid_out_as_documented() {
        let origin = Origin::command(3, 17u16);
        let event = Event::End { origin, status: 4 };
        let record = Record {
            sequence: 1,
            nanos: 2,
            event,
        };
        let raw = Raw::new(&record);
        let bytes = raw.as_bytes();
        assert_eq!((bytes[0], bytes[8], bytes[16]), (1, 2, 5));
        assert_eq!(bytes[24..32], [17, 0, 0, 0, 3, 0, 0, 0xc0]);
        assert_eq!(bytes[32], 4);
    }
}
