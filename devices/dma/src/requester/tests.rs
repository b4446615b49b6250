//! Tests of a requester with mappings, windows, peers and a client.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use peerbar_dma_log::{Completer, Direction, DmaKind, Origin, Purpose, Route};
use peerbar_pci::BusAddress;

use super::transfer::LINK_WAIT;
use super::*;
use crate::MemoryFile;
use crate::buffer::Buffer;
use crate::client::PROBE;
use crate::counters::Count;
use crate::error::{DmaError, DmaFault};
use crate::leases::Leases;
use crate::link_speed::{Bandwidth, Latency, LinkSpeed};
use crate::map::MapError;
use crate::map_access::MapAccess;
use crate::memory::Span;
use crate::pages::PageTable;
use crate::peer_changes::ChangeCount;
use crate::peers::{PeerError, PeerId, PeerMemory, PeerRouting, PeerWindow};
use crate::register_value::RegisterValue;
use crate::route::{OwnWindow, OwnWindowMemory};
use crate::session::Session;
use crate::tag::Tag;
use crate::upstream::{UpstreamError, UpstreamRequest};

/// A client with a device's memory at 0x8000..0x9000 that notes the requests it gets.
#[derive(Default)]
struct Client {
    memory: Mutex<Vec<u8>>,
    asked: Mutex<Vec<(u64, usize)>>,
    calls: AtomicUsize,
}

impl Client {
    fn span(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, UpstreamError> {
        self.asked.lock().push((address, len));
        let start = address
            .checked_sub(0x8000)
            .map(|start| usize::try_from(start).unwrap());
        start
            .filter(|start| start + len <= 0x1000)
            .map(|start| start..start + len)
            .ok_or(UpstreamError::Refused(19))
    }
}

impl Client {
    fn one(&self, ask: &mut UpstreamRequest<'_>) -> Result<(), UpstreamError> {
        let range = self.span(ask.address.0, ask.data.len())?;
        let memory = &mut self.memory.lock()[range];
        match &mut ask.data {
            Buffer::Read(data) => data.copy_from_slice(memory),
            Buffer::Write(data) => memory.copy_from_slice(data),
        }
        Ok(())
    }
}

impl Upstream for Client {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        self.calls.fetch_add(1, Relaxed);
        for ask in requests {
            assert!(may_go_on());
            let outcome = self.one(ask);
            ask.outcome = Some(outcome);
            if outcome.is_err() {
                break;
            }
        }
    }
}

fn iovas(first: u64, size: u64) -> Range<Iova> {
    Range::new(Iova(first), size).unwrap()
}

/// RAM at 0x1000..0x3000, the client's device at 0x8000..0x9000, own memory at 0x9000..0xa000.
fn requester() -> (Requester, Arc<Client>) {
    let requester = Requester::new();
    let client = Arc::new(Client {
        memory: Mutex::new(vec![0; 0x1000]),
        ..Client::default()
    });
    requester.set_upstream(Some(client.clone()));
    let ram = MemoryFile::create("ram", 0x2000).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    requester
        .map(iovas(0x1000, 0x2000), MapAccess::READ_WRITE, Some((fd, 0)))
        .unwrap();
    requester
        .map(iovas(0x8000, 0x1000), MapAccess::READ_WRITE, None)
        .unwrap();
    let own = Span {
        file: Arc::new(MemoryFile::create("own", 0x1000).unwrap()),
        offset: 0,
    };
    requester.set_window(
        WindowId::Cmb,
        Some(OwnWindow {
            range: Range::new(BusAddress(0x9000), 0x1000).unwrap(),
            memory: OwnWindowMemory::Span(own),
        }),
    );
    requester.set_bus_master(true);
    (requester, client)
}

fn count(requester: &Requester, route: Route, completer: Completer, direction: Direction) -> Count {
    let wanted = DmaKind {
        purpose: Purpose::Payload,
        route,
        completer,
        direction,
    };
    let snapshot = requester.ledger().counters().snapshot();
    snapshot
        .into_iter()
        .find(|(entry, _)| *entry == wanted)
        .map(|(_, count)| count)
        .unwrap_or_default()
}

/// Returns the failure of a segment of a request that the device itself has made.
fn failed(address: u64, len: usize, cause: DmaFault) -> DmaError {
    DmaError {
        origin: Origin::Device,
        address: Iova(address),
        len,
        cause,
    }
}

#[test]
fn entries_for_the_client_are_sent_to_it_together() {
    let (requester, client) = requester();
    let mut session = Session::new(Arc::new(requester));
    let entries: Vec<u8> = (0..64).collect();
    session
        .write_entries(Purpose::Completion, Iova(0x8010), &entries, 16)
        .unwrap();
    let asked: Vec<_> = (0x8010..0x8050).step_by(16).map(|at| (at, 16)).collect();
    assert_eq!(*client.asked.lock(), asked, "each as a whole");
    assert_eq!(client.calls.load(Relaxed), 1);
    assert_eq!(client.memory.lock()[0x10..0x50], entries);
    let refused = session.write_entries(Purpose::Completion, Iova(0x7ff0), &[0xff; 32], 16);
    assert!(refused.is_err(), "the first one has no memory");
    assert_eq!(
        client.memory.lock()[..0x10],
        [0; 0x10],
        "the next one is not written"
    );
}

#[test]
fn each_route_moves_bytes_and_counts_its_completer() {
    let (requester, _) = requester();
    for (address, route, completer) in [
        (0x1800, Route::GuestRam, Completer::GuestRam),
        (0x8010, Route::Upstream, Completer::PeerBar),
        (0x9020, Route::OwnBar, Completer::OwnMemory),
    ] {
        let mut back = [0; 100];
        requester
            .write(Purpose::Payload, Iova(address), &[7; 100])
            .unwrap();
        requester
            .read(Purpose::Payload, Iova(address), &mut back)
            .unwrap();
        assert_eq!(back, [7; 100]);
        let once = Count {
            requests: 1,
            bytes: 100,
            failures: 0,
        };
        assert_eq!(count(&requester, route, completer, Direction::Write), once);
        assert_eq!(count(&requester, route, completer, Direction::Read), once);
    }
}

#[test]
fn range_over_several_targets_is_split_into_segments() {
    let (requester, _) = requester();
    let data: Vec<u8> = (0..0x200u16).map(|i| i.to_le_bytes()[0]).collect();
    requester
        .write(Purpose::Payload, Iova(0x8f00), &data)
        .unwrap();
    let mut back = vec![0; data.len()];
    requester
        .read(Purpose::Payload, Iova(0x8f00), &mut back)
        .unwrap();
    assert_eq!(back, data);
    let half = Count {
        requests: 1,
        bytes: 0x100,
        failures: 0,
    };
    assert_eq!(
        count(
            &requester,
            Route::Upstream,
            Completer::PeerBar,
            Direction::Write
        ),
        half
    );
    assert_eq!(
        count(
            &requester,
            Route::OwnBar,
            Completer::OwnMemory,
            Direction::Write
        ),
        half
    );
}

#[test]
fn unmapped_address_is_probed_at_the_client_and_fails() {
    let (requester, client) = requester();
    let error = requester
        .write(Purpose::Payload, Iova(0x5000), &[0; 0x1000])
        .unwrap_err();
    assert_eq!(
        error,
        failed(
            0x5000,
            0x1000,
            DmaFault::Upstream(UpstreamError::Refused(19))
        )
    );
    assert_eq!(*client.asked.lock(), [(0x5000, PROBE)]);
    let failed = Count {
        requests: 0,
        bytes: 0,
        failures: 1,
    };
    assert_eq!(
        count(
            &requester,
            Route::Upstream,
            Completer::None,
            Direction::Write
        ),
        failed
    );
}

#[test]
fn a_failure_names_the_command_that_asked_for_it() {
    let (requester, _) = requester();
    let tag = Tag::new(Purpose::Payload, Origin::command(3, 17u16));
    let error = requester
        .read(tag, Iova(0x2ff0), &mut [0; 0x20])
        .unwrap_err();
    assert_eq!(
        (error.origin, error.address, error.len),
        (tag.origin, Iova(0x3000), 0x10)
    );
    assert_eq!(
        error.to_string(),
        "DMA at 0x3000+0x10 for queue 3, command 17"
    );
}

#[test]
fn client_access_to_unmapped_address_has_unknown_completer() {
    let (requester, _) = requester();
    requester.unmap(Range::from_bounds(Iova(0x8000), Iova(0x8fff)).unwrap());
    requester
        .write(Purpose::Payload, Iova(0x8000), &[1; 64])
        .unwrap();
    let of = |completer| count(&requester, Route::Upstream, completer, Direction::Write);
    assert_eq!(of(Completer::Unknown).bytes, 64);
    assert_eq!(of(Completer::PeerBar), Count::default());
}

#[test]
fn only_an_aligned_word_that_is_read_is_asked_whole() {
    let (requester, client) = requester();
    requester.unmap(Range::from_bounds(Iova(0x8000), Iova(0x8fff)).unwrap());
    for (address, asked) in [
        (0x8010, &[(0x8010, 8)][..]),
        (0x8014, &[(0x8014, PROBE), (0x8018, PROBE)][..]),
    ] {
        let mut word = [0; 8];
        requester
            .read(Purpose::Payload, Iova(address), &mut word)
            .unwrap();
        assert_eq!(std::mem::take(&mut *client.asked.lock()), asked);
    }
    requester
        .write(Purpose::Completion, Iova(0x8010), &[1; 8])
        .unwrap();
    assert_eq!(
        *client.asked.lock(),
        [(0x8010, PROBE), (0x8014, PROBE)],
        "an IOMMU reports one fault of few bytes if it refuses"
    );
}

#[test]
fn forbidden_write_fails_even_if_the_client_swallows_it() {
    let (requester, client) = requester();
    requester.unmap(Range::from_bounds(Iova(0x8000), Iova(0x8fff)).unwrap());
    requester
        .map(iovas(0x8000, 0x1000), MapAccess::READ_ONLY, None)
        .unwrap();
    let error = requester
        .write(Purpose::Payload, Iova(0x8000), &[1; 64])
        .unwrap_err();
    assert_eq!(error, failed(0x8000, 64, DmaFault::Forbidden));
    assert_eq!(*client.asked.lock(), [(0x8000, PROBE)]);
    let of = |completer| count(&requester, Route::Upstream, completer, Direction::Write);
    assert_eq!(of(Completer::None).failures, 1);
    requester
        .read(Purpose::Payload, Iova(0x8000), &mut [0; 8])
        .unwrap();
}

/// A client that resets the function while it answers.
struct Resetting {
    requester: std::sync::Weak<Requester>,
    asked: Mutex<Vec<(u64, usize)>>,
}

impl Upstream for Resetting {
    fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], may_go_on: &dyn Fn() -> bool) {
        for ask in requests.iter_mut().take_while(|_| may_go_on()) {
            let extent = (ask.address.0, ask.data.len());
            self.asked.lock().push(extent);
            self.requester.upgrade().unwrap().halt();
            ask.outcome = Some(Ok(()));
        }
    }
}

#[test]
fn reset_during_a_transfer_stops_requests_to_the_client() {
    let (mapped, unmapped) = (0x8000_0000, 0xf000_0000);
    for (list, first) in [
        (
            [(Iova(mapped), 0x1000), (Iova(mapped + 0x2000), 0x1000)],
            0x1000,
        ),
        (
            [(Iova(unmapped), 0x1000), (Iova(unmapped + 0x2000), 0x1000)],
            PROBE,
        ),
    ] {
        let requester = Arc::new(Requester::new());
        requester.set_bus_master(true);
        requester
            .map(iovas(mapped, 1 << 20), MapAccess::READ_WRITE, None)
            .unwrap();
        let client = Arc::new(Resetting {
            requester: Arc::downgrade(&requester),
            asked: Mutex::default(),
        });
        requester.set_upstream(Some(client.clone()));
        let outcome = requester.scatter(Purpose::Payload, list, &[0; 0x2000]);
        assert_eq!(
            outcome.map_err(|error| error.cause),
            Err(DmaFault::NotMaster)
        );
        assert_eq!(*client.asked.lock(), [(list[0].0.0, first)]);
    }
}

#[test]
fn all_pieces_of_a_request_are_asked_of_the_client_together() {
    let (requester, client) = requester();
    let list = [
        (Iova(0x8000), 8),
        (Iova(0x1000), 8),
        (Iova(0x8800), 8),
        (Iova(0x8100), 8),
    ];
    let data: Vec<u8> = (0..32).collect();
    requester.scatter(Purpose::Payload, list, &data).unwrap();
    let mut back = [0; 32];
    requester.gather(Purpose::Payload, list, &mut back).unwrap();
    assert_eq!(back[..], data[..]);
    assert_eq!(client.calls.load(Relaxed), 2);
    for direction in [Direction::Read, Direction::Write] {
        let upstream = count(&requester, Route::Upstream, Completer::PeerBar, direction);
        assert_eq!((upstream.requests, upstream.bytes), (3, 24));
    }
}

#[test]
fn request_reports_its_first_failure_and_counts_the_rest() {
    let (requester, _) = requester();
    requester
        .map(iovas(0xb000, 0x1000), MapAccess::READ_WRITE, None)
        .unwrap();
    let list = [(Iova(0x8000), 8), (Iova(0xb000), 8), (Iova(0x8100), 8)];
    let refused = DmaFault::Upstream(UpstreamError::Refused(19));
    let error = requester.scatter(Purpose::Payload, list, &[0; 24]);
    assert_eq!(error, Err(failed(0xb000, 8, refused)));
    // Segments before one that fails here are requested, segments behind it are not.
    requester.set_window(
        WindowId::Bar(0),
        Some(OwnWindow {
            range: Range::new(BusAddress(0xd000), 0x1000).unwrap(),
            memory: OwnWindowMemory::Registers,
        }),
    );
    let list = [(Iova(0x8000), 8), (Iova(0xd000), 8), (Iova(0xb000), 8)];
    let error = requester.scatter(Purpose::Payload, list, &[0; 24]);
    assert_eq!(error, Err(failed(0xd000, 8, DmaFault::OwnRegisters)));
    let upstream = |completer| {
        let count = count(&requester, Route::Upstream, completer, Direction::Write);
        (count.requests, count.bytes, count.failures)
    };
    assert_eq!(upstream(Completer::PeerBar), (2, 16, 0));
    assert_eq!(upstream(Completer::None).2, 1);
}

#[test]
fn without_a_client_what_needs_it_fails() {
    let (requester, _) = requester();
    requester.set_upstream(None);
    let error = requester
        .read(Purpose::Payload, Iova(0x8000), &mut [0; 8])
        .unwrap_err();
    assert_eq!(error.cause, DmaFault::Upstream(UpstreamError::Gone));
}

#[test]
fn window_of_pages_refuses_a_missing_page() {
    let (requester, _) = requester();
    let file = Arc::new(MemoryFile::create("vram", 0x4000).unwrap());
    let table = Arc::new(PageTable::new(file.clone(), 2, 0x1000));
    table.set(0, Some(0x3000)).unwrap();
    let window = OwnWindow {
        range: Range::new(BusAddress(0x1_0000), 0x2000).unwrap(),
        memory: OwnWindowMemory::Pages(table.clone()),
    };
    requester.set_window(WindowId::Bar(2), Some(window));
    let error = requester
        .write(Purpose::Payload, Iova(0x1_0f00), &[9; 0x200])
        .unwrap_err();
    assert_eq!(error, failed(0x1_1000, 0x100, DmaFault::NoPage));
    assert_eq!(error.address, Iova(0x1_1000));
    let mut back = [0; 0x100];
    file.read(0x3f00, &mut back).unwrap();
    assert_eq!(back, [9; 0x100]);
    let of = |route, completer| count(&requester, route, completer, Direction::Write);
    assert_eq!(of(Route::OwnBar, Completer::OwnMemory).bytes, 0x100);
    assert_eq!(of(Route::Refused, Completer::None).failures, 1);
    table.set(1, Some(0)).unwrap();
    requester
        .write(Purpose::Payload, Iova(0x1_1000), &[9; 8])
        .unwrap();
    table.set(1, None).unwrap();
    assert!(
        requester
            .read(Purpose::Payload, Iova(0x1_1000), &mut [0; 8])
            .is_err()
    );
}

#[test]
fn bus_mastering_off_refuses_and_is_recorded() {
    let (requester, client) = requester();
    requester.set_bus_master(false);
    for address in [0x1000, 0x8000, 0x9000] {
        let error = requester
            .read(Purpose::Payload, Iova(address), &mut [0; 8])
            .unwrap_err();
        assert_eq!(error, failed(address, 8, DmaFault::NotMaster));
    }
    assert_eq!(
        count(&requester, Route::Refused, Completer::None, Direction::Read).failures,
        3
    );
    assert!(client.asked.lock().is_empty());
}

#[test]
fn a_halt_lasts_until_it_is_ended_whatever_the_guest_does() {
    let (requester, _) = requester();
    requester.halt();
    requester.set_bus_master(true);
    assert!(
        requester
            .write(Purpose::Payload, Iova(0x1000), &[1])
            .is_err()
    );
    requester.resume();
    assert!(
        requester
            .write(Purpose::Payload, Iova(0x1000), &[1])
            .is_ok()
    );
}

#[test]
fn a_wrapping_range_is_shown_to_the_client_and_refused() {
    let (requester, client) = requester();
    for address in [u64::MAX, u64::MAX - 0x7ff] {
        let len = 0x1000;
        let error = requester
            .write(Purpose::Payload, Iova(address), &[1; 0x1000])
            .unwrap_err();
        assert_eq!(error, failed(address, len, DmaFault::Wraps));
    }
    assert_eq!(
        *client.asked.lock(),
        [(u64::MAX, 1), (u64::MAX - 0x7ff, PROBE)]
    );
    let refused = count(
        &requester,
        Route::Refused,
        Completer::None,
        Direction::Write,
    );
    assert_eq!(refused.failures, 2);
}

#[test]
fn an_empty_range_does_nothing() {
    let (requester, client) = requester();
    requester
        .read(Purpose::Payload, Iova(0x5000), &mut [])
        .unwrap();
    assert!(client.asked.lock().is_empty());
}

#[test]
fn memory_that_cannot_be_mapped_is_reached_through_the_client() {
    let (requester, client) = requester();
    requester.unmap(Range::from_bounds(Iova(0x8000), Iova(0x8fff)).unwrap());
    let fd = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 0x1000).unwrap();
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::FUTURE_WRITE).unwrap();
    requester
        .map(iovas(0x8000, 0x1000), MapAccess::READ_WRITE, Some((fd, 0)))
        .unwrap();
    requester
        .write(Purpose::Payload, Iova(0x8000), &[1; 64])
        .unwrap();
    assert_eq!(*client.asked.lock(), [(0x8000, 64)]);
    assert_eq!(
        count(
            &requester,
            Route::Upstream,
            Completer::GuestRam,
            Direction::Write
        )
        .bytes,
        64
    );
}

#[test]
fn an_unmapped_span_is_gone() {
    let (requester, client) = requester();
    requester.unmap(Range::from_bounds(Iova(0), Iova(u64::MAX)).unwrap());
    assert!(
        requester
            .write(Purpose::Payload, Iova(0x1000), &[1])
            .is_err()
    );
    assert_eq!(*client.asked.lock(), [(0x1000, 1)]);
}

/// A peer with registers at 0x2_0000..0x2_1000 that notes writes and reads as 7.
#[derive(Default)]
struct Registers(Mutex<Vec<(u64, Vec<u8>)>>);

impl Peers for Registers {
    fn access(&self, peer: PeerId, address: BusAddress, data: Buffer<'_>) -> Result<(), PeerError> {
        assert_eq!(peer, PeerId(4));
        match data {
            Buffer::Write(data) => self.0.lock().push((address.0, data.to_vec())),
            Buffer::Read(data) if address.0 < 0x2_0800 => data.fill(7),
            Buffer::Read(_) => return Err(PeerError::TimedOut),
        }
        Ok(())
    }
}

/// Returns the same requester below a switch with peer 3, which has memory at 0x1_0000..0x1_1000,
/// and peer 4.
fn below_switch(routing: PeerRouting) -> (Requester, Arc<Client>, Arc<Registers>, Span) {
    let (requester, client) = requester();
    let registers = Arc::new(Registers::default());
    requester.set_switch(routing, registers.clone());
    let memory = MemoryFile::create("peer", 0x2000).unwrap();
    let fd = memory.file().try_clone().unwrap().into();
    let span = requester
        .borrow_memory(PeerId(3), fd, (0x1000, 0x1000))
        .unwrap();
    let window = |address, memory| PeerWindow {
        range: Range::new(BusAddress(address), 0x1000).unwrap(),
        claim: address,
        memory,
    };
    let lent = window(0x1_0000, PeerMemory::Span(span.clone()));
    requester.set_peer(PeerId(3), vec![lent]);
    requester.set_peer(PeerId(4), vec![window(0x2_0000, PeerMemory::ByMessage)]);
    (requester, client, registers, span)
}

#[test]
fn a_peer_s_memory_is_met_without_the_client() {
    let (requester, client, _, span) = below_switch(PeerRouting::Route);
    requester
        .write(Purpose::Payload, Iova(0x1_0ff0), &[5; 16])
        .unwrap();
    let mut back = [0; 16];
    span.file.read(0x1ff0, &mut back).unwrap();
    assert_eq!(back, [5; 16]);
    let written = count(
        &requester,
        Route::Peer,
        Completer::PeerBar,
        Direction::Write,
    );
    assert_eq!((written.requests, written.bytes), (1, 16));
    assert!(client.asked.lock().is_empty());
}

#[test]
fn a_peer_s_registers_are_met_by_message() {
    let (requester, client, registers, _) = below_switch(PeerRouting::Route);
    requester
        .write(Purpose::Payload, Iova(0x2_0004), &[1, 2, 3, 4])
        .unwrap();
    assert_eq!(*registers.0.lock(), [(0x2_0004, vec![1, 2, 3, 4])]);
    let mut data = [0; 4];
    requester
        .read(Purpose::Payload, Iova(0x2_0000), &mut data)
        .unwrap();
    assert_eq!(data, [7; 4]);
    let error = requester
        .read(Purpose::Payload, Iova(0x2_0800), &mut data)
        .unwrap_err();
    let (address, len, source) = (0x2_0800, 4, PeerError::TimedOut);
    assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
    let failed = count(&requester, Route::Peer, Completer::None, Direction::Read);
    assert_eq!(failed.failures, 1);
    assert!(client.asked.lock().is_empty());
}

/// A switch that the function may leave.
#[derive(Default)]
struct Left(Mutex<usize>);

impl Peers for Left {
    fn access(&self, _: PeerId, _: BusAddress, _: Buffer<'_>) -> Result<(), PeerError> {
        Err(PeerError::Unsupported)
    }

    fn give_up(&self) {
        *self.0.lock() += 1;
    }
}

/// Returns a function that knows all changes of the switch above it, and the switch's count.
fn below_counting_switch() -> (Arc<Requester>, Arc<Client>, Arc<Left>, ChangeCount) {
    let (requester, client) = requester();
    let switch = Arc::new(Left::default());
    requester.set_switch(PeerRouting::Route, switch.clone());
    let counts = ChangeCount::new().unwrap();
    let fd = counts.file().try_clone().unwrap().into();
    requester.set_changes(fd).unwrap();
    requester.know_changes(0);
    (Arc::new(requester), client, switch, counts)
}

fn memory_at(address: u64) -> PeerWindow {
    let memory = MemoryFile::create("peer", 0x1000).unwrap();
    PeerWindow {
        range: Range::new(BusAddress(address), 0x1000).unwrap(),
        claim: 1,
        memory: PeerMemory::Span(Span {
            file: Arc::new(memory),
            offset: 0,
        }),
    }
}

#[test]
fn request_waits_until_all_changes_of_before_are_known() {
    let (requester, client, switch, counts) = below_counting_switch();
    counts.set(1).unwrap();
    let changes = requester.route_table().changes.clone().unwrap();
    let writer = {
        let requester = requester.clone();
        std::thread::spawn(move || requester.write(Purpose::Payload, Iova(0x5_0000), &[3; 4]))
    };
    while changes.waits.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    drop(requester.set_peer(PeerId(3), vec![memory_at(0x5_0000)]));
    requester.know_changes(1);
    assert_eq!(writer.join().unwrap(), Ok(()));
    assert_eq!((client.asked.lock().len(), *switch.0.lock()), (0, 0));
}

#[test]
fn request_that_waits_for_changes_calls_the_function() {
    let (requester, _, switch, counts) = below_counting_switch();
    let weak = Arc::downgrade(&requester);
    requester.on_missed_changes(move || weak.upgrade().unwrap().know_changes(1));
    counts.set(1).unwrap();
    let mut data = [0; 4];
    requester
        .read(Purpose::Payload, Iova(0x1000), &mut data)
        .unwrap();
    assert_eq!(*switch.0.lock(), 0, "the switch was left");
}

#[test]
fn session_compares_changes_before_each_request() {
    let (requester, _, _, counts) = below_counting_switch();
    let mut session = Session::new(requester.clone());
    let reaches = |session: &mut Session| {
        session.reaches(Purpose::Payload, Direction::Read, (Iova(0x1000), 4))
    };
    let data = MemoryFile::create("data", 0x1000).unwrap();
    let transfer = |session: &mut Session| {
        let there = (&*data, 0);
        session.transfer(Purpose::Payload, Direction::Read, Iova(0x1000), there, 4)
    };
    assert_eq!(transfer(&mut session), Some(Ok(())));
    counts.set(1).unwrap();
    assert_eq!(transfer(&mut session), None);
    assert!(!reaches(&mut session));
    requester.know_changes(1);
    assert!(reaches(&mut session));
    counts.set(2).unwrap();
    // The request that has compared the counts continues.
    assert_eq!(transfer(&mut session), Some(Ok(())));
    assert_eq!(transfer(&mut session), Some(Ok(())));
    let mut word = [0; 4];
    session
        .read(Purpose::Command, Iova(0x1000), &mut word)
        .unwrap();
    // The next one waits.
    assert!(
        session
            .pin(Purpose::Payload, Direction::Read, [(Iova(0x1000), 4)])
            .is_none()
    );
    assert_eq!(transfer(&mut session), None);
    let learns = {
        let requester = requester.clone();
        std::thread::spawn(move || {
            let mut session = Session::new(requester);
            session.learn();
            session
                .pin(Purpose::Payload, Direction::Read, [(Iova(0x1000), 4)])
                .is_some()
        })
    };
    requester.know_changes(2);
    assert!(learns.join().unwrap());
}

#[test]
fn switch_that_does_not_say_what_has_changed_is_lost() {
    let (requester, client, switch, counts) = below_counting_switch();
    drop(requester.set_peer(PeerId(3), vec![memory_at(0x5_0000)]));
    counts.set(2).unwrap();
    let former = requester.route_table().changes.clone().unwrap();
    requester.set_bus_master(false);
    requester.learn_changes_in(1);
    assert_eq!(*switch.0.lock(), 0, "it may issue no request");
    requester.set_bus_master(true);
    requester.learn_changes_in(1);
    assert_eq!(*switch.0.lock(), 1);
    // No further request waits. One to RAM succeeds, one to a peer fails.
    let mut data = [0; 4];
    requester
        .read(Purpose::Payload, Iova(0x1000), &mut data)
        .unwrap();
    let gone = requester.write(Purpose::Payload, Iova(0x5_0000), &[3; 4]);
    let gone = gone.map_err(|error| error.cause);
    assert_eq!(gone, Err(DmaFault::Peer(PeerError::Gone)));
    assert!(client.asked.lock().is_empty());
    // A request that has waited for it leaves no other switch.
    let fd = counts.file().try_clone().unwrap().into();
    requester.set_changes(fd).unwrap();
    requester.leave_switch(&former, 2);
    assert_eq!(*switch.0.lock(), 1);
    let present = requester.route_table().changes.clone().unwrap();
    // The function does without its peers until it knows all changes that were counted by then, and
    // then waits for changes again.
    assert_eq!(present.missed(), None);
    requester.know_changes(2);
    counts.set(3).unwrap();
    assert_eq!(present.missed(), Some(3));
    requester.know_changes(3);
    requester.leave_switch(&present, 3);
    assert!(requester.route_table().changes.is_some(), "it knows all");
}

#[test]
fn port_that_redirects_requests_waits_for_no_change() {
    let (requester, _, switch, counts) = below_counting_switch();
    requester.set_switch(PeerRouting::Redirect, switch.clone());
    counts.set(1).unwrap();
    let changes = requester.route_table().changes.clone().unwrap();
    let mut data = [0; 4];
    requester
        .read(Purpose::Payload, Iova(0x1000), &mut data)
        .unwrap();
    assert_eq!((changes.waits.load(Relaxed), *switch.0.lock()), (0, 0));
}

#[test]
fn transfer_to_a_window_that_stays_delays_no_change_of_others() {
    let (requester, ..) = below_counting_switch();
    let leases = Leases::new().unwrap();
    let memory = MemoryFile::create("peer", 0x1000).unwrap();
    let window = || {
        let words = leases.file().try_clone().unwrap().into();
        let lease = requester.borrow_leases(words).unwrap().lease(2, 0);
        let fd = memory.file().try_clone().unwrap().into();
        let span = requester.borrow_window(PeerId(3), lease, fd, (0, 0x1000));
        PeerWindow {
            memory: PeerMemory::Span(span.unwrap()),
            ..memory_at(0x5_0000)
        }
    };
    drop(requester.set_peer(PeerId(3), vec![window()]));
    let mut session = Session::new(requester.clone());
    let list = [(Iova(0x5_0000), 8)];
    let pinned = session.pin(Purpose::Payload, Direction::Write, list);
    let pinned = pinned.unwrap();
    session.release();
    let drain = requester.set_peer(PeerId(3), vec![window(), memory_at(0x6_0000)]);
    assert_eq!(
        drain.ranges,
        [Range::new(BusAddress(0x6_0000), 0x1000).unwrap()]
    );
    drop(drain);
    // A window that is closed in between is waited for, but not without limit.
    leases.end(2);
    let drain = requester.set_peer(PeerId(3), vec![memory_at(0x6_0000)]);
    assert!(
        drain
            .ranges
            .contains(&Range::new(BusAddress(0x5_0000), 0x1000).unwrap())
    );
    drop(drain);
    assert!(pinned.intact().is_err());
}

/// A peer that removes the function's right to issue requests while it answers one.
struct Resets(Mutex<Vec<(u64, usize)>>, std::sync::Weak<Requester>);

impl Peers for Resets {
    fn access(&self, _: PeerId, address: BusAddress, data: Buffer<'_>) -> Result<(), PeerError> {
        self.0.lock().push((address.0, data.len()));
        self.1.upgrade().unwrap().set_bus_master(false);
        Ok(())
    }
}

#[test]
fn request_to_a_peer_by_message_ends_with_the_right_to_issue_it() {
    let (requester, _) = requester();
    let requester = Arc::new(requester);
    let peer = Arc::new(Resets(Mutex::default(), Arc::downgrade(&requester)));
    requester.set_switch(PeerRouting::Route, peer.clone());
    let window = PeerWindow {
        range: Range::new(BusAddress(0x2_0000), 0x2_0000).unwrap(),
        claim: 0x2_0000,
        memory: PeerMemory::ByMessage,
    };
    requester.set_peer(PeerId(4), vec![window]);
    let mut data = vec![0; 0x1_8000];
    let read = requester.read(Purpose::Payload, Iova(0x2_0000), &mut data);
    assert_eq!(read.unwrap_err().cause, DmaFault::NotMaster);
    assert_eq!(*peer.0.lock(), [(0x2_0000, 32 << 10)]);
    requester.set_bus_master(true);
    let one = requester.read(Purpose::Payload, Iova(0x2_0000), &mut data[..64]);
    assert_eq!(one, Ok(()), "the only step");
}

/// Returns the counts of register writes: those that succeeded on a route, and all that failed.
fn register_writes(requester: &Requester, done: (Route, Completer)) -> (u64, u64) {
    let snapshot = requester.ledger().counters().snapshot();
    let registers = snapshot.iter();
    let registers = registers.filter(|(kind, _)| kind.purpose == Purpose::Register);
    registers.fold((0, 0), |(written, failed), (kind, count)| {
        let is_done = (kind.route, kind.completer) == done;
        let written = written + if is_done { count.requests } else { 0 };
        (written, failed + count.failures)
    })
}

#[test]
fn register_is_written_by_one_access_on_each_route() {
    use RegisterValue::{Quad, Word};
    let (requester, client, registers, span) = below_switch(PeerRouting::Route);
    let write = |address, value| requester.write_register(Origin::Queue(3), address, value);
    write(Iova(0x2_0004), Word(0x0403_0201)).unwrap();
    write(Iova(0x2_0008), Quad(0x0807_0605_0403_0201)).unwrap();
    let eight: Vec<u8> = (1..=8).collect();
    let noted = registers.0.lock().clone();
    assert_eq!(noted, [(0x2_0004, vec![1, 2, 3, 4]), (0x2_0008, eight)]);
    write(Iova(0x1_0ff8), Word(7)).unwrap();
    assert_eq!(span.file.load(0x1ff8).unwrap(), 7);
    let below = (Route::Peer, Completer::PeerBar);
    assert_eq!(register_writes(&requester, below), (3, 0));
    write(Iova(0x8010), Quad(u64::MAX)).unwrap();
    let mapped = (Route::Upstream, Completer::PeerBar);
    assert_eq!(register_writes(&requester, mapped), (1, 0));
    requester.unmap(Range::from_bounds(Iova(0x8000), Iova(0x8fff)).unwrap());
    write(Iova(0x8018), Quad(u64::MAX)).unwrap();
    let unmapped = (Route::Upstream, Completer::Unknown);
    assert_eq!(register_writes(&requester, unmapped), (1, 0));
    assert_eq!(*client.asked.lock(), [(0x8010, 8), (0x8018, 8)]);
}

#[test]
fn unaligned_register_is_refused_and_not_written() {
    let (requester, client, registers, _) = below_switch(PeerRouting::Route);
    let unaligned = [
        (0x2_0002, RegisterValue::Word(1)),
        (0x2_0004, RegisterValue::Quad(1)),
        (u64::MAX, RegisterValue::Word(1)),
    ];
    for (address, value) in unaligned {
        let error = requester.write_register(Origin::Device, Iova(address), value);
        assert_eq!(error.unwrap_err().cause, DmaFault::Unaligned);
    }
    let refused = (Route::Refused, Completer::None);
    assert_eq!(register_writes(&requester, refused), (0, 3));
    assert!(registers.0.lock().is_empty() && client.asked.lock().is_empty());
}

#[test]
fn register_write_of_each_link_mode_is_counted_by_its_fate() {
    let value = RegisterValue::Word(1);
    for (routing, fate, is_lost) in [
        (
            PeerRouting::Redirect,
            Err(DmaFault::Upstream(UpstreamError::Refused(19))),
            false,
        ),
        (
            PeerRouting::UnsupportedRequest,
            Err(DmaFault::Peer(PeerError::Unsupported)),
            false,
        ),
        (PeerRouting::Drop, Ok(()), true),
    ] {
        let (requester, _, registers, _) = below_switch(routing);
        let written = requester.write_register(Origin::Device, Iova(0x2_0004), value);
        assert_eq!(written.map_err(|error| error.cause), fate, "{routing:?}");
        let counts = register_writes(&requester, (Route::Refused, Completer::None));
        assert_eq!(counts, (u64::from(is_lost), u64::from(!is_lost)));
        assert!(registers.0.lock().is_empty());
    }
}

#[test]
fn register_write_without_bus_mastering_goes_nowhere() {
    let (requester, client, registers, _) = below_switch(PeerRouting::Route);
    requester.set_bus_master(false);
    for address in [0x2_0004, 0x8010] {
        let error = requester.write_register(Origin::Device, Iova(address), RegisterValue::Word(1));
        assert_eq!(error.unwrap_err().cause, DmaFault::NotMaster);
    }
    assert!(registers.0.lock().is_empty() && client.asked.lock().is_empty());
}

#[test]
fn withdrawn_peer_is_no_peer_and_vanished_one_fails() {
    let (requester, client, ..) = below_switch(PeerRouting::Route);
    requester.set_peer(PeerId(3), Vec::new());
    let error = requester
        .write(Purpose::Payload, Iova(0x1_0000), &[1])
        .unwrap_err();
    assert!(matches!(error.cause, DmaFault::Upstream(_)), "{error}");
    assert_eq!(*client.asked.lock(), [(0x1_0000, 1)]);
    requester.lose_peers();
    let error = requester
        .write(Purpose::Payload, Iova(0x2_0000), &[1])
        .unwrap_err();
    let (address, len, source) = (0x2_0000, 1, PeerError::Gone);
    assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
    assert_eq!(client.asked.lock().len(), 1);
}

#[test]
fn redirected_requests_to_peers_go_up() {
    let (requester, client, ..) = below_switch(PeerRouting::Redirect);
    for address in [0x1_0000, 0x2_0000] {
        assert!(
            requester
                .write(Purpose::Payload, Iova(address), &[1])
                .is_err()
        );
    }
    assert_eq!(*client.asked.lock(), [(0x1_0000, 1), (0x2_0000, 1)]);
}

#[test]
fn unsupported_requests_are_refused_and_reported() {
    let (requester, client, registers, _) = below_switch(PeerRouting::UnsupportedRequest);
    for address in [0x1_0000, 0x2_0000] {
        let error = requester
            .write(Purpose::Payload, Iova(address), &[1])
            .unwrap_err();
        let (len, source) = (1, PeerError::Unsupported);
        assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
    }
    let refused = count(
        &requester,
        Route::Refused,
        Completer::None,
        Direction::Write,
    );
    assert_eq!(refused.failures, 2);
    assert!(client.asked.lock().is_empty());
    assert!(registers.0.lock().is_empty());
}

#[test]
fn dropped_write_succeeds_and_dropped_read_times_out() {
    let (requester, client, _, span) = below_switch(PeerRouting::Drop);
    requester
        .write(Purpose::Payload, Iova(0x1_0000), &[1; 8])
        .unwrap();
    let mut data = [0; 8];
    span.file.read(0x1000, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    let error = requester
        .read(Purpose::Payload, Iova(0x1_0000), &mut data)
        .unwrap_err();
    let (address, len, source) = (0x1_0000, 8, PeerError::TimedOut);
    assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
    let of = |direction| count(&requester, Route::Refused, Completer::None, direction);
    assert_eq!(
        (of(Direction::Write).bytes, of(Direction::Read).failures),
        (8, 1)
    );
    assert!(client.asked.lock().is_empty());
}

#[test]
fn bus_mastering_off_comes_before_every_peer() {
    let (requester, ..) = below_switch(PeerRouting::Drop);
    requester.set_bus_master(false);
    let error = requester
        .write(Purpose::Payload, Iova(0x1_0000), &[1])
        .unwrap_err();
    assert!(matches!(error.cause, DmaFault::NotMaster), "{error}");
}

/// A clock that advances only by waits. After a wait it resets the function, or makes a peer write
/// nonsense to its meters.
#[derive(Default)]
struct Time {
    now: Mutex<u64>,
    resets: Mutex<Option<std::sync::Weak<Requester>>>,
    meters: Mutex<Option<File>>,
}

impl Clock for Arc<Time> {
    fn now(&self) -> u64 {
        *self.now.lock()
    }

    fn sleep(&self, nanoseconds: u64) {
        *self.now.lock() += nanoseconds;
        if let Some(meters) = &*self.meters.lock() {
            meters.write_all_at(&[0xff; 16], 0).unwrap();
        }
        if let Some(requester) = self.resets.lock().take() {
            let requester = requester.upgrade().unwrap();
            let is_free = requester.routes.try_write().is_some();
            assert!(is_free, "the routes are locked during a wait");
            requester.halt();
        }
    }
}

/// A peer that answers each message late, by this time.
struct Late(Arc<Time>, u64, Mutex<usize>);

impl Peers for Late {
    fn access(&self, _: PeerId, _: BusAddress, _: Buffer<'_>) -> Result<(), PeerError> {
        self.0.sleep(self.1);
        *self.2.lock() += 1;
        Ok(())
    }
}

#[test]
fn request_to_a_peer_that_is_late_for_each_message_times_out() {
    let seconds = |seconds: u64| seconds * 1_000_000_000;
    for (late, answers) in [(seconds(3), 2), (seconds(1), 5), (1000, 8)] {
        let time = Arc::<Time>::default();
        let requester = Requester::with_clock(Box::new(time.clone()));
        requester.set_bus_master(true);
        let peer = Arc::new(Late(time, late, Mutex::default()));
        requester.set_switch(PeerRouting::Route, peer.clone());
        let windows = (0..3).map(|number| PeerWindow {
            range: Range::new(BusAddress(0x2_0000 + number * 0x1_8000), 0x1_8000).unwrap(),
            claim: number,
            memory: PeerMemory::ByMessage,
        });
        requester.set_peer(PeerId(4), windows.collect());
        let written = requester.write(Purpose::Payload, Iova(0x2_0000), &[1; 8 * (32 << 10)]);
        let cause = written.map_err(|error| error.cause);
        let expected = match answers {
            8 => Ok(()),
            _ => Err(DmaFault::Peer(PeerError::TimedOut)),
        };
        assert_eq!((cause, *peer.2.lock()), (expected, answers));
    }
}

/// 1 ns for each byte, and the latency in ns.
fn link(latency: u64) -> Link {
    Link::new(LinkSpeed {
        latency: Latency::of_nanoseconds(latency),
        bandwidth: Bandwidth::of_bytes_per_second(1_000_000_000),
    })
    .unwrap()
}

/// RAM in two mappings at 0x1000..0x3000, a peer's memory at 0x1_0000, own memory at 0x2_0000.
fn with_links() -> (Arc<Requester>, Arc<Time>) {
    let time = Arc::<Time>::default();
    let requester = Requester::with_clock(Box::new(time.clone()));
    requester.set_bus_master(true);
    for iova in [0x1000, 0x2000] {
        let memory = MemoryFile::create("ram", 0x1000).unwrap();
        let fd = memory.file().try_clone().unwrap().into();
        requester
            .map(iovas(iova, 0x1000), MapAccess::READ_WRITE, Some((fd, 0)))
            .unwrap();
    }
    let span = || Span {
        file: Arc::new(MemoryFile::create("test", 0x1000).unwrap()),
        offset: 0,
    };
    let window = PeerWindow {
        range: Range::new(BusAddress(0x1_0000), 0x1000).unwrap(),
        claim: 1,
        memory: PeerMemory::Span(span()),
    };
    requester.set_peer(PeerId(1), vec![window]);
    let own = OwnWindow {
        range: Range::new(BusAddress(0x2_0000), 0x1000).unwrap(),
        memory: OwnWindowMemory::Span(span()),
    };
    requester.set_window(WindowId::Bar(2), Some(own));
    (Arc::new(requester), time)
}

#[test]
fn a_transfer_takes_its_time_on_the_links_that_it_takes() {
    let (requester, time) = with_links();
    let took = |address, len| {
        let before = time.now();
        let data = vec![1; len];
        requester.write(Purpose::Payload, address, &data).unwrap();
        time.now() - before
    };
    assert_eq!(
        [took(Iova(0x1000), 0x2000), took(Iova(0x1_0000), 0x1000)],
        [0, 0]
    );
    requester.set_link(link(100));
    assert_eq!(
        took(Iova(0x1000), 0x2000),
        0x2000 + 100,
        "one request, two mappings"
    );
    assert_eq!(took(Iova(0x1_0000), 0x1000), 0x1000 + 100);
    assert_eq!(
        took(Iova(0x2_0000), 0x1000),
        0,
        "own memory is behind no link"
    );
    let peer = link(30);
    let meters = peer.meters().try_clone_to_owned().unwrap();
    requester
        .set_peer_link(PeerId(1), peer.speed(), meters)
        .unwrap();
    assert_eq!(took(Iova(0x1_0000), 0x1000), 0x1000 + 130);
    assert_eq!(took(Iova(0x1000), 0x1000), 0x1000 + 100);
}

#[test]
fn what_is_read_from_several_addresses_has_the_latency_once() {
    let (requester, time) = with_links();
    requester.set_link(link(100));
    let mut data = [0; 0x300];
    let list = [
        (Iova(0x1000), 0x100),
        (Iova(0x2f00), 0x100),
        (Iova(0x1800), 0x100),
    ];
    requester.gather(Purpose::Payload, list, &mut data).unwrap();
    assert_eq!(time.now(), 0x300 + 100);
}

/// Writes 64 KiB to a peer whose link has this many bytes per second and, if it lies, is never
/// free. Returns the outcome and the seconds that it took.
fn write_to_peer_by_link(bandwidth: u64, lies: bool) -> (Result<(), DmaFault>, u64) {
    let (requester, time) = with_links();
    let speed = LinkSpeed {
        latency: Latency::of_nanoseconds(0),
        bandwidth: Bandwidth::of_bytes_per_second(bandwidth),
    };
    let meters = MemoryFile::create("meters", 16).unwrap();
    let meters = meters.file().try_clone().unwrap();
    let lent = meters.try_clone().unwrap().into();
    requester.set_peer_link(PeerId(1), speed, lent).unwrap();
    if lies {
        meters.write_all_at(&[0xff; 16], 0).unwrap();
        *time.meters.lock() = Some(meters);
    }
    let list = [(Iova(0x1_0000), 0x1000); 16];
    let written = requester.scatter(Purpose::Payload, list, &[1; 0x1_0000]);
    if let Err(error) = &written {
        assert_eq!((error.address, error.len), (Iova(0x1_0000), 0x1000));
    }
    (
        written.map_err(|error| error.cause),
        time.now() / 1_000_000_000,
    )
}

#[test]
fn link_that_a_peer_keeps_busy_fails_the_request_in_time() {
    let (written, seconds) = write_to_peer_by_link(1 << 20, true);
    assert_eq!(written, Err(DmaFault::LinkBusy));
    assert!((4..6).contains(&seconds), "{seconds}");
    assert_eq!(write_to_peer_by_link(1 << 20, false), (Ok(()), 0));
}

#[test]
fn a_reset_ends_the_wait_for_a_link() {
    let (requester, time) = with_links();
    requester.set_link(link(100_000_000));
    *time.resets.lock() = Some(Arc::downgrade(&requester));
    let error = requester
        .write(Purpose::Payload, Iova(0x1000), &[1; 8])
        .unwrap_err();
    assert_eq!(error.cause, DmaFault::NotMaster);
    assert_eq!(time.now(), LINK_WAIT);
}

#[test]
fn reset_between_segments_on_two_links_ends_the_request() {
    let (requester, time) = with_links();
    requester.set_link(link(100_000_000));
    let peer = link(30);
    let meters = peer.meters().try_clone_to_owned().unwrap();
    requester
        .set_peer_link(PeerId(1), peer.speed(), meters)
        .unwrap();
    *time.resets.lock() = Some(Arc::downgrade(&requester));
    let mut data = [0; 0x200];
    let list = [(Iova(0x1000), 0x100), (Iova(0x1_0000), 0x100)];
    let error = requester
        .gather(Purpose::Payload, list, &mut data)
        .unwrap_err();
    assert_eq!(error.cause, DmaFault::NotMaster);
    assert_eq!(time.now(), LINK_WAIT);
}

#[test]
fn injected_delay_of_a_dma_ends_with_a_reset() {
    let (requester, time) = with_links();
    requester
        .add_fault("delay dma by=1s".parse().unwrap())
        .unwrap();
    let write = |address| requester.write(Purpose::Payload, address, &[1; 8]);
    write(Iova(0x1000)).unwrap();
    assert_eq!(time.now(), 1_000_000_000);
    *time.resets.lock() = Some(Arc::downgrade(&requester));
    let error = write(Iova(0x1000)).unwrap_err();
    assert_eq!(error.cause, DmaFault::NotMaster);
    assert_eq!(time.now(), 1_000_000_000 + LINK_WAIT);
}

#[test]
fn injected_mapping_fails_or_is_late_and_others_are_made() {
    let requester = Requester::new();
    for rule in [
        "fail mapping address=0x1000..0x2000 limit=1",
        "delay mapping by=20ms nth=2",
    ] {
        requester.add_fault(rule.parse().unwrap()).unwrap();
    }
    let map = |iova| requester.map(iovas(iova, 0x1000), MapAccess::READ_WRITE, None);
    let start = std::time::Instant::now();
    assert_eq!(map(0x1000), Err(MapError::Injected));
    requester.unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap());
    assert_eq!(map(0x2000), Ok(()));
    assert!(start.elapsed() >= std::time::Duration::from_millis(20));
    assert_eq!(map(0x1000), Ok(()), "no rule fires any more");
    let again = map(0x2000);
    assert!(matches!(again, Err(MapError::Overlap { .. })), "{again:?}");
}

#[test]
fn injected_fault_meets_the_segments_of_its_route() {
    let (requester, _) = with_links();
    requester
        .add_fault("fail dma write route=peer".parse().unwrap())
        .unwrap();
    let write = |address| requester.write(Purpose::Payload, address, &[1; 8]);
    assert_eq!(
        write(Iova(0x1_0000)).map_err(|error| error.cause),
        Err(DmaFault::Injected)
    );
    write(Iova(0x1000)).unwrap();
    requester
        .read(Purpose::Payload, Iova(0x1_0000), &mut [0; 8])
        .unwrap();
    requester.faults().clear();
    write(Iova(0x1_0000)).unwrap();
}

#[test]
fn session_transfers_meet_injected_faults() {
    let (requester, _) = with_links();
    let mut session = Session::new(requester.clone());
    session
        .read(Purpose::Payload, Iova(0x1000), &mut [0; 8])
        .unwrap();
    requester.add_fault("fail dma".parse().unwrap()).unwrap();
    let range = (Iova(0x1000), 8);
    assert!(!session.reaches(Purpose::Payload, Direction::Read, range));
    assert!(
        session
            .pin(Purpose::Payload, Direction::Read, [range])
            .is_none()
    );
    let error = session
        .read(Purpose::Payload, Iova(0x1000), &mut [0; 8])
        .unwrap_err();
    assert_eq!(error.cause, DmaFault::Injected);
    requester.faults().clear();
    session
        .read(Purpose::Payload, Iova(0x1000), &mut [0; 8])
        .unwrap();
}
