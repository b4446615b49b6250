//! The route decision against a slow model of the rules: one address at a time, every rule in its order.

use std::sync::Arc;

use peerbar_dma_log::{Direction, Route};
use peerbar_flight::WindowId;
use peerbar_pci::{self as pci, BusAddress, Iova};
use proptest::prelude::*;

use crate::map::Backing;
use crate::map_access::MapAccess;
use crate::memory::{MemoryFile, Span};
use crate::peers::{PeerId, PeerMemory, PeerRouting, PeerWindow};
use crate::route::{OwnWindow, OwnWindowMemory, RouteTable, Target};

/// Addresses below this are tried.
const END: u64 = 48;

/// A range and the number of a kind of memory.
type Range = (u64, u64, u8);

#[derive(Clone, Debug)]
struct Setting {
    bus_master: bool,
    routing: u8,
    own: Vec<Range>,
    peers: Vec<Range>,
    mappings: Vec<Range>,
}

/// The meaning of an address: the owner, and the offset in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    NotMaster,
    OwnRegisters,
    /// An offset in a memory file, identified by its size, and the way to it.
    Memory(&'static str, u64, u64),
    ByMessage(u32),
    PeerGone,
    PeerRefused,
    PeerDropped,
    RemoteRam,
    Device,
    Forbidden,
    Unmapped,
}

fn ranges(most: usize) -> impl Strategy<Value = Vec<Range>> {
    prop::collection::vec((0..END, 1u64..16, 0u8..4), 0..most)
}

fn settings() -> impl Strategy<Value = Setting> {
    let lists = (ranges(3), ranges(5), ranges(6));
    (prop::bool::weighted(0.9), 0u8..6, lists).prop_map(
        |(bus_master, routing, (own, peers, mappings))| Setting {
            bus_master,
            routing,
            own,
            peers,
            mappings,
        },
    )
}

impl Setting {
    fn routing(&self) -> PeerRouting {
        match self.routing {
            0 => PeerRouting::Redirect,
            1 => PeerRouting::UnsupportedRequest,
            2 => PeerRouting::Drop,
            _ => PeerRouting::Route,
        }
    }

    /// Builds the requester's route table for this setting. Each memory has a file of a different
    /// size, which identifies it.
    fn routes(&self) -> RouteTable {
        let mut routes = RouteTable {
            bus_master: self.bus_master,
            peer_routing: self.routing(),
            ..RouteTable::default()
        };
        for (index, (address, size, kind)) in (0..).zip(&self.own) {
            let memory = match kind {
                0 => OwnWindowMemory::Registers,
                _ => OwnWindowMemory::Span(span(0x100 + u64::from(index))),
            };
            let window = OwnWindow {
                range: pci::Range::new(BusAddress(*address), *size).unwrap(),
                memory,
            };
            routes.windows.insert(WindowId::Bar(index), window);
        }
        for (index, (address, size, kind)) in (0..).zip(&self.peers) {
            let memory = match kind {
                0 => PeerMemory::ByMessage,
                1 => PeerMemory::Gone,
                _ => PeerMemory::Span(span(0x200 + u64::from(index))),
            };
            let window = PeerWindow {
                range: pci::Range::new(BusAddress(*address), *size).unwrap(),
                // The later in the list, the older.
                claim: 99 - u64::from(index),
                memory,
            };
            routes.peers.set(PeerId(index), vec![window]);
        }
        for (index, (address, size, kind)) in (0..).zip(&self.mappings) {
            let backing = match kind {
                0 => Backing::Device,
                1 => Backing::RemoteRam,
                _ => Backing::Ram(span(0x300 + index)),
            };
            let access = match kind {
                2 => MapAccess::READ_ONLY,
                _ => MapAccess::READ_WRITE,
            };
            // A mapping that overlaps an earlier one is refused.
            let _ = routes.map.map(
                pci::Range::new(Iova(*address), *size).unwrap(),
                access,
                backing,
            );
        }
        routes
    }

    fn meaning(&self, at: u64, direction: Direction) -> Meaning {
        if !self.bus_master {
            return Meaning::NotMaster;
        }
        if let Some((index, (address, _, kind))) = holder(&self.own, at) {
            return match kind {
                0 => Meaning::OwnRegisters,
                _ => Meaning::Memory("own", 0x100 + index, at - address),
            };
        }
        let peers: Vec<Range> = self.peers.iter().rev().copied().collect();
        let peer = holder(&peers, at).filter(|_| self.routing() != PeerRouting::Redirect);
        if let Some((from_end, (address, _, kind))) = peer {
            let index = self.peers.len() as u64 - 1 - from_end;
            return match (self.routing(), kind) {
                (PeerRouting::UnsupportedRequest, _) => Meaning::PeerRefused,
                (PeerRouting::Drop, _) => Meaning::PeerDropped,
                (_, 0) => Meaning::ByMessage(index.try_into().unwrap()),
                (_, 1) => Meaning::PeerGone,
                _ => Meaning::Memory("peer", 0x200 + index, at - address),
            };
        }
        match holder(&self.accepted_mappings(), at) {
            Some((_, (_, _, 0))) => Meaning::Device,
            Some((_, (_, _, 1))) => Meaning::RemoteRam,
            Some((_, (_, _, 2))) if direction == Direction::Write => Meaning::Forbidden,
            Some((_, mapping)) => {
                let index = self
                    .mappings
                    .iter()
                    .position(|each| *each == mapping)
                    .unwrap();
                Meaning::Memory("ram", 0x300 + index as u64, at - mapping.0)
            }
            None => Meaning::Unmapped,
        }
    }

    fn accepted_mappings(&self) -> Vec<Range> {
        let mut accepted: Vec<Range> = Vec::new();
        for mapping in &self.mappings {
            let taken = |at| holder(&accepted, at).is_some();
            if !(mapping.0..mapping.0 + mapping.1).any(taken) {
                accepted.push(*mapping);
            }
        }
        accepted
    }
}

fn span(size: u64) -> Span {
    Span {
        file: Arc::new(MemoryFile::create("test", size).unwrap()),
        offset: 0,
    }
}

/// Returns the first range that holds an address.
fn holder(ranges: &[Range], at: u64) -> Option<(u64, Range)> {
    let holds = |(_, (address, size, _)): &(u64, Range)| (*address..address + size).contains(&at);
    (0..).zip(ranges.iter().copied()).find(holds)
}

/// Returns the meaning of a target `further` bytes after its start.
fn read(target: &Target, further: u64) -> Meaning {
    let memory = |way, span: &Span| Meaning::Memory(way, span.file.size(), span.offset + further);
    match target {
        Target::NotMaster => Meaning::NotMaster,
        Target::OwnRegisters => Meaning::OwnRegisters,
        Target::Own(span) => memory("own", span),
        Target::OwnPage(..) => panic!("no window is made of pages"),
        Target::Peer(_, span) => memory("peer", span),
        Target::PeerByMessage(peer) => Meaning::ByMessage(peer.0),
        Target::PeerGone => Meaning::PeerGone,
        Target::PeerRefused => Meaning::PeerRefused,
        Target::PeerDropped => Meaning::PeerDropped,
        Target::Ram(span) => memory("ram", span),
        Target::RemoteRam => Meaning::RemoteRam,
        Target::Device => Meaning::Device,
        Target::Forbidden => Meaning::Forbidden,
        Target::Unmapped => Meaning::Unmapped,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_byte_of_a_piece_goes_where_the_rules_say(
        setting in settings(),
        len in 1usize..40,
        write in any::<bool>(),
    ) {
        let direction = if write { Direction::Write } else { Direction::Read };
        let routes = setting.routes();
        for address in 0..END {
            let segment = routes.route(Iova(address), len, direction);
            prop_assert!((1..=len).contains(&segment.len));
            for further in 0..segment.len as u64 {
                let rule = setting.meaning(address + further, direction);
                prop_assert_eq!(read(&segment.target, further), rule, "{:#x} of {:?}", address + further, &setting);
            }
        }
    }

    #[test]
    fn memory_that_is_reached_directly_is_where_the_rules_say(setting in settings(), write in any::<bool>()) {
        let direction = if write { Direction::Write } else { Direction::Read };
        let routes = setting.routes();
        for address in 0..END {
            let Some(direct) = routes.direct(Iova(address), direction) else {
                let rule = setting.meaning(address, direction);
                prop_assert!(!matches!(rule, Meaning::Memory(..)), "{:#x} of {:?}", address, &setting);
                continue;
            };
            prop_assert!(direct.range.contains(Iova(address)));
            let (first, last) = (direct.range.first().0, direct.range.last().0);
            for at in first..=last {
                let way = match direct.route {
                    Route::OwnBar => "own",
                    Route::Peer => "peer",
                    _ => "ram",
                };
                let memory = Meaning::Memory(way, direct.span.file.size(), direct.span.offset + (at - first));
                prop_assert_eq!(memory, setting.meaning(at, direction), "{:#x} of {:?}", at, &setting);
            }
        }
    }
}
