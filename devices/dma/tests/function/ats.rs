//! Address translation services. A function that keeps translations behaves like one that keeps
//! none, regardless of what the guest maps and unmaps at the same time; only a port that redirects
//! lets its translated requests pass.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerbar_dma::{
    CounterFile, MapAccess, MemoryFile, PeerId, PeerMemory, PeerRouting, PeerWindow, Purpose,
    Requester,
};
use peerbar_dma_log::counter_file::Reader;
use peerbar_pci::{BusAddress, Iova, Range};
use proptest::prelude::*;
use proptest::sample::select;

use crate::no_upstream::NoUpstream;

const PAGE: u64 = 0x1000;
/// Address and length of the peer's window.
const PEER: u64 = 0x10_0000;
const PEER_PAGES: u64 = 4;
const RAM_PAGES: u64 = 16;
/// The longest wait of a test for an event.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A function below a switch, guest RAM, and a peer's memory.
struct World {
    requester: Requester,
    ram: File,
    peer: File,
}

fn world(routing: PeerRouting, ats: bool) -> World {
    let requester = Requester::new();
    requester.set_bus_master(true);
    requester.set_upstream(Some(Arc::new(NoUpstream)));
    requester.set_switch(routing, Arc::new(NoUpstream));
    requester.set_ats(ats);
    let memory = |pages| {
        let file = MemoryFile::create("test", pages * PAGE).unwrap();
        file.file().try_clone().unwrap()
    };
    let world = World {
        requester,
        ram: memory(RAM_PAGES),
        peer: memory(PEER_PAGES),
    };
    world.open_peer(true);
    world
}

impl World {
    fn map(&self, page: u64, pages: u64, access: MapAccess, ram_page: u64) -> bool {
        let memory: OwnedFd = self.ram.try_clone().unwrap().into();
        let memory = Some((memory, ram_page * PAGE));
        let mapped = self.requester.map(
            Range::new(Iova(page * PAGE), pages * PAGE).unwrap(),
            access,
            memory,
        );
        mapped.is_ok()
    }

    fn map_peer(&self) -> bool {
        let size = PEER_PAGES * PAGE;
        self.requester
            .map(
                Range::new(Iova(PEER), size).unwrap(),
                MapAccess::READ_WRITE,
                None,
            )
            .is_ok()
    }

    fn unmap(&self, page: u64, pages: u64) {
        let first = page * PAGE;
        self.requester
            .unmap(Range::from_bounds(Iova(first), Iova(first + (pages * PAGE - 1))).unwrap());
    }

    fn open_peer(&self, open: bool) {
        let fd = self.peer.try_clone().unwrap().into();
        let size = PEER_PAGES * PAGE;
        let span = self
            .requester
            .borrow_memory(PeerId(1), fd, (0, size))
            .unwrap();
        let window = PeerWindow {
            range: Range::new(BusAddress(PEER), size).unwrap(),
            claim: 1,
            memory: PeerMemory::Span(span),
        };
        let windows = if open { vec![window] } else { Vec::new() };
        self.requester.set_peer(PeerId(1), windows);
    }

    fn write(&self, address: u64, data: &[u8]) -> bool {
        let written = self.requester.write(Purpose::Payload, Iova(address), data);
        written.is_ok()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from((RAM_PAGES + PEER_PAGES) * PAGE).unwrap()];
        let (ram, peer) = bytes.split_at_mut(usize::try_from(RAM_PAGES * PAGE).unwrap());
        self.ram.read_exact_at(ram, 0).unwrap();
        self.peer.read_exact_at(peer, 0).unwrap();
        bytes
    }
}

/// An event that a function meets.
#[derive(Clone, Debug)]
enum Event {
    Map(u64, u64, MapAccess, u64),
    Unmap(u64, u64),
    UnmapAll,
    OpenPeer(bool),
    Write(u64, usize, u8),
    Read(u64, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let address = || prop_oneof![4 => 0..24 * PAGE, 1 => PEER - PAGE..PEER + 5 * PAGE];
    let access = select(vec![MapAccess::READ_ONLY, MapAccess::READ_WRITE]);
    let map = (0u64..24, 1u64..4, access, 0..RAM_PAGES - 3);
    let event = prop_oneof![
        4 => map.prop_map(|(page, pages, access, ram_page)| Event::Map(page, pages, access, ram_page)),
        3 => (0u64..24, 1u64..8).prop_map(|(page, pages)| Event::Unmap(page, pages)),
        1 => Just(Event::UnmapAll),
        1 => any::<bool>().prop_map(Event::OpenPeer),
        6 => (address(), 1usize..0x3000, 1u8..).prop_map(|(at, len, byte)| Event::Write(at, len, byte)),
        3 => (address(), 1usize..0x3000).prop_map(|(at, len)| Event::Read(at, len)),
    ];
    prop::collection::vec(event, 1..40)
}

/// Returns the effect of an event, as the function sees it.
fn happen(world: &World, event: &Event) -> (bool, Vec<u8>) {
    match *event {
        Event::Map(page, pages, access, ram_page) => {
            (world.map(page, pages, access, ram_page), Vec::new())
        }
        Event::Unmap(page, pages) => {
            world.unmap(page, pages);
            (true, Vec::new())
        }
        Event::UnmapAll => {
            world.requester.unmap_all();
            (true, Vec::new())
        }
        Event::OpenPeer(open) => {
            world.open_peer(open);
            (true, Vec::new())
        }
        Event::Write(at, len, byte) => (world.write(at, &vec![byte; len]), Vec::new()),
        Event::Read(at, len) => {
            let mut data = vec![0; len];
            let read = world.requester.read(Purpose::Payload, Iova(at), &mut data);
            (read.is_ok(), if read.is_ok() { data } else { Vec::new() })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn cached_translations_change_no_outcome(events in events()) {
        let (with, without) = (world(PeerRouting::Route, true), world(PeerRouting::Route, false));
        for event in &events {
            prop_assert_eq!(happen(&with, event), happen(&without, event), "{:?}", event);
        }
        prop_assert!(with.bytes() == without.bytes());
        let off = without.requester.ats_counts();
        prop_assert_eq!((off.asked, off.hits), (0, 0));
    }
}

/// Ends the writers however a test ends.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for the writers.
#[track_caller]
fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let start = Instant::now();
    while !come() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

#[test]
fn once_an_unmap_has_returned_no_kept_translation_is_used() {
    let world = world(PeerRouting::Route, true);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("device.counters");
    world
        .requester
        .count_in(CounterFile::create(&path).unwrap());
    let counters = Reader::open(&path).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&ended);
        for writer in 1..=2u8 {
            let (world, ended) = (&world, &ended);
            scope.spawn(move || {
                let mut data = [writer; 64];
                while !ended.load(Ordering::Relaxed) {
                    for page in 0..4 {
                        world.write(page * PAGE + 64 * u64::from(writer), &data);
                    }
                    data[0] = data[0].wrapping_add(2);
                }
            });
        }
        let lookups = || {
            let counts = world.requester.ats_counts();
            counts.asked + counts.hits
        };
        for round in 0..200 {
            assert!(world.map(0, 4, MapAccess::READ_WRITE, 0));
            wait_until("a translation", || world.requester.ats_counts().cached > 0);
            world.unmap(round % 4, 1);
            world.unmap(0, 4);
            let before = world.bytes();
            let looked_up = lookups();
            wait_until("attempts to write", || lookups() > looked_up + 16);
            assert!(world.bytes() == before, "round {round}");
            assert_eq!(world.requester.ats_counts().cached, 0);
        }
    });
    let counts = world.requester.ats_counts();
    assert!(counts.invalidated >= 200, "{counts:?}");
    assert_eq!(counters.read().unwrap().ats, counts);
}

#[test]
fn redirecting_port_passes_translated_requests_to_peers() {
    let without = world(PeerRouting::Redirect, false);
    assert!(without.map_peer());
    assert!(!without.write(PEER, &[1; 8]), "it goes up");
    let with = world(PeerRouting::Redirect, true);
    assert!(!with.write(PEER, &[1; 8]), "no mapping says what it means");
    assert!(with.map_peer());
    assert!(with.write(PEER + 8, &[1; 8]));
    let mut bytes = [0; 16];
    with.peer.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    with.open_peer(false);
    assert!(!with.write(PEER, &[2; 8]), "the peer answers there no more");
    with.open_peer(true);
    with.requester
        .unmap(Range::from_bounds(Iova(PEER), Iova(PEER)).unwrap());
    assert!(!with.write(PEER, &[2; 8]), "the translation is gone");
    let refusing = world(PeerRouting::UnsupportedRequest, true);
    assert!(refusing.map_peer() && !refusing.write(PEER, &[1; 8]));
}

#[test]
fn turned_off_a_function_keeps_no_translation() {
    let world = world(PeerRouting::Route, true);
    assert!(world.map(0, 2, MapAccess::READ_WRITE, 0));
    assert!(world.write(0, &[1; 8]) && world.write(8, &[1; 8]));
    let counts = world.requester.ats_counts();
    assert_eq!((counts.asked, counts.hits, counts.cached), (1, 1, 1));
    world.requester.set_ats(false);
    assert_eq!(world.requester.ats_counts().cached, 0);
    assert!(world.write(0, &[1; 8]));
    assert_eq!(world.requester.ats_counts().hits, 1);
}
