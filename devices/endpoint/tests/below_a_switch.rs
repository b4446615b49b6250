//! Two endpoints below a real switch, transferring to each other.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use peerbar_dma::{
    Completer, Direction, DmaError, DmaFault, MapAccess, MemoryFile, Origin, PageTable, PeerError,
    Purpose, RegisterValue, RegisterWrite, Requester, Route, Session, Span,
};
use peerbar_endpoint::{BarMemory, Endpoint, PeerPages, Vectors};
use peerbar_flight::{Event, FlightFile, Level, Recorder};
use peerbar_pci::{Bar, ConfigSpace, Function, Iova, Range};
use peerbar_rig::{Notes, Ready, ServerThread, wait_until};
use peerbar_switch::{CLOSING_TIME_OUT, Config, LinkMode};
use peerbar_vfio_user::{CONFIG_REGION, Device};

const COMMAND: u64 = 0x04;
const DECODE_AND_MASTER: u8 = 0b110;

/// Starts a switch.
fn start(modes: &[(&str, LinkMode)]) -> ServerThread {
    ServerThread::start(serve(modes))
}

fn serve(modes: &[(&str, LinkMode)]) -> impl FnOnce(&Path, UnixStream, Ready) + Send + use<> {
    let modes = modes.iter();
    let modes = modes.map(|(name, mode)| ((*name).to_owned(), *mode));
    let config = Config {
        modes: modes.collect(),
        ..Config::default()
    };
    |path, stop, ready| peerbar_switch::serve(path, config, None, &stop, ready).unwrap()
}

/// An endpoint with registers in BAR0, memory in BAR2 and two pages, the second unmapped, in BAR4.
struct Card {
    endpoint: Endpoint<Notes>,
    notes: Arc<Notes>,
    requester: Arc<Requester>,
    memory: Arc<MemoryFile>,
}

impl Card {
    fn new(switch: &Path, name: &str) -> Self {
        let bar = |index, size| Bar::new(index, size, true).unwrap();
        let config =
            ConfigSpace::of_test_function(&[bar(0, 0x4000), bar(2, 0x10000), bar(4, 0x2000)]);
        let memory = Arc::new(MemoryFile::create("memory", 0x10000).unwrap());
        let pages = PageTable::new(
            Arc::new(MemoryFile::create("pages", 0x2000).unwrap()),
            2,
            0x1000,
        );
        pages.set(0, Some(0x1000)).unwrap();
        let span = Span {
            file: memory.clone(),
            offset: 0,
        };
        let behind = [
            BarMemory::Registers,
            BarMemory::Memory(span),
            BarMemory::Pages(Arc::new(pages)),
        ];
        let notes = Arc::new(Notes::default());
        let requester = Arc::new(Requester::new());
        let vectors = Arc::new(Vectors::new(1).unwrap());
        let mut endpoint = Endpoint::new(notes.clone(), config, behind, requester.clone(), vectors);
        endpoint.attach_to_switch(switch, name).unwrap();
        Self {
            endpoint,
            notes,
            requester,
            memory,
        }
    }

    fn configure(&mut self, offset: u64, data: &[u8]) {
        self.endpoint
            .region_write(CONFIG_REGION, offset, data)
            .unwrap();
    }

    /// Puts the BARs at `base`, `base + 0x10_0000` and `base + 0x20_0000`, and switches decode and bus mastering on.
    fn program(&mut self, base: u64) {
        for (bar, offset) in [(0x10, 0), (0x18, 0x10_0000), (0x20, 0x20_0000)] {
            self.configure(bar, &(base + offset).to_le_bytes());
        }
        self.configure(COMMAND, &[DECODE_AND_MASTER, 0]);
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.requester.write(Purpose::Payload, Iova(address), data)
    }

    fn ring(&self, address: u64, value: u32) -> Result<(), DmaError> {
        let value = RegisterValue::Word(value);
        self.requester
            .write_register(Origin::Device, Iova(address), value)
    }

    fn bytes(&self, route: Route, completer: Completer) -> u64 {
        let snapshot = self.requester.ledger().counters().snapshot();
        let wanted = snapshot.iter().filter(|(entry, _)| {
            (entry.route, entry.completer, entry.direction) == (route, completer, Direction::Write)
        });
        wanted.map(|(_, count)| count.bytes).sum()
    }
}

fn peer_error(result: Result<(), DmaError>) -> PeerError {
    match result.unwrap_err().cause {
        DmaFault::Peer(source) => source,
        other => panic!("{other}"),
    }
}

const A: u64 = 0x38_0000_0000;
const B: u64 = 0x39_0000_0000;
const MEMORY: u64 = 0x10_0000;
const PAGES: u64 = 0x20_0000;

#[test]
fn memory_registers_and_pages_of_a_peer_are_reached() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    a.write(B + MEMORY + 0x100, &[1; 0x200]).unwrap();
    let mut data = [0; 0x200];
    b.memory.read(0x100, &mut data).unwrap();
    assert_eq!(data, [1; 0x200]);
    a.write(B + 0x20, &[2; 4]).unwrap();
    assert_eq!(*b.notes.0.lock().unwrap(), [(0x20, vec![2; 4])]);
    a.write(B + PAGES, &[3; 8]).unwrap();
    a.requester
        .read(Purpose::Payload, Iova(B + PAGES), &mut data[..8])
        .unwrap();
    assert_eq!(data[..8], [3; 8]);
    assert_eq!(a.bytes(Route::Peer, Completer::PeerBar), 0x200 + 4 + 8);
    assert_eq!(
        peer_error(a.write(B + PAGES + 0x1000, &[4; 8])),
        PeerError::Unsupported
    );
    let noted = b.notes.0.lock().unwrap().last().unwrap().clone();
    assert_eq!(
        noted,
        (0x1000, vec![4; 8]),
        "the function can note the fault"
    );
}

/// A function that records the first word of a memory at each write to its registers.
struct Watcher {
    memory: Arc<MemoryFile>,
    seen: Mutex<Vec<(u32, u32)>>,
}

impl Function for Watcher {
    fn bar_read(&self, _bar: u8, _offset: u64, _data: &mut [u8]) {}

    fn bar_write(&self, _bar: u8, _offset: u64, data: &[u8]) {
        let value = u32::from_le_bytes(data.try_into().unwrap());
        let memory = self.memory.load(0).unwrap();
        self.seen.lock().unwrap().push((value, memory));
    }

    fn reset(&self) {}
}

/// Makes an endpoint "b" with only registers at `B`.
fn with_registers<F: Function + 'static>(
    switch: &ServerThread,
    function: Arc<F>,
    registers: BarMemory,
) -> Endpoint<F> {
    let mut endpoint = Endpoint::new(
        function,
        ConfigSpace::of_test_function(&[Bar::new(0, 0x4000, true).unwrap()]),
        [registers],
        Arc::new(Requester::new()),
        Arc::new(Vectors::new(1).unwrap()),
    );
    endpoint.attach_to_switch(&switch.socket(), "b").unwrap();
    let configure =
        |(offset, data): (u64, &[u8])| endpoint.region_write(CONFIG_REGION, offset, data);
    let base: &[u8] = &B.to_le_bytes();
    let written = [(0x10, base), (COMMAND, &[DECODE_AND_MASTER, 0])].map(configure);
    assert_eq!(written, [Ok(()), Ok(())]);
    endpoint
}

#[test]
fn pages_that_are_lent_are_written_without_a_message() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    a.program(A);
    let notes = Arc::new(Notes::default());
    let file = Arc::new(MemoryFile::create("doorbells", 0x4000).unwrap());
    let pages =
        BarMemory::RegistersWithPages(file.clone(), vec![(0x1000, 0x1000)], PeerPages::Lent);
    let mut b = with_registers(&switch, notes.clone(), pages);
    a.ring(B + 0x1010, 7).unwrap();
    assert!(notes.0.lock().unwrap().is_empty());
    a.write(B + 0xffc, &[1, 0, 0, 0, 2, 0, 0, 0]).unwrap();
    a.ring(B + 0x2000, 3).unwrap();
    let words = [0x1000, 0x1010, 0x2000].map(|offset| file.load(offset).unwrap());
    assert_eq!(words, [2, 7, 0]);
    let noted = notes.0.lock().unwrap().clone();
    let expected =
        [(0xffc, 1u32), (0x2000, 3)].map(|(at, value)| (at, value.to_le_bytes().to_vec()));
    assert_eq!(noted, expected);
    b.region_write(CONFIG_REGION, COMMAND, &[0, 0]).unwrap();
    assert!(a.ring(B + 0x1010, 8).is_err());
    assert_eq!(file.load(0x1010).unwrap(), 7);
}

#[test]
fn pages_of_more_windows_than_a_switch_takes_are_written_by_messages() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    a.program(A);
    let notes = Arc::new(Notes::default());
    let files = ["0", "2", "4"].map(|name| Arc::new(MemoryFile::create(name, 0x4000).unwrap()));
    let pages = |file: &Arc<MemoryFile>| {
        BarMemory::RegistersWithPages(file.clone(), vec![(0x1000, 0x1000)], PeerPages::Lent)
    };
    let bar = |index| Bar::new(index, 0x4000, true).unwrap();
    let mut b = Endpoint::new(
        notes.clone(),
        ConfigSpace::of_test_function(&[bar(0), bar(2), bar(4)]),
        files.each_ref().map(pages),
        Arc::new(Requester::new()),
        Arc::new(Vectors::new(1).unwrap()),
    );
    b.attach_to_switch(&switch.socket(), "b").unwrap();
    let mut configure = |offset, data: &[u8]| b.region_write(CONFIG_REGION, offset, data).unwrap();
    let bars = [B, B + MEMORY, B + PAGES];
    for (offset, address) in [0x10, 0x18, 0x20].into_iter().zip(bars) {
        configure(offset, &address.to_le_bytes());
    }
    configure(COMMAND, &[DECODE_AND_MASTER, 0]);
    for (value, address) in (1..).zip(bars) {
        a.ring(address + 0x1010, value).unwrap();
    }
    assert_eq!(files[0].load(0x1010).unwrap(), 1, "by a mapping");
    let noted = notes.0.lock().unwrap().clone();
    let expected = [2u32, 3].map(|value| (0x1010, value.to_le_bytes().to_vec()));
    assert_eq!(noted, expected, "by messages");
}

#[test]
fn pages_with_notification_are_written_by_message() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    a.program(A);
    let notes = Arc::new(Notes::default());
    let file = Arc::new(MemoryFile::create("doorbells", 0x4000).unwrap());
    let pages = BarMemory::RegistersWithPages(file, vec![(0x1000, 0x1000)], PeerPages::Notified);
    let _b = with_registers(&switch, notes.clone(), pages);
    a.ring(B + 0x1010, 7).unwrap();
    let noted = notes.0.lock().unwrap().clone();
    assert_eq!(noted, [(0x1010, 7u32.to_le_bytes().to_vec())]);
}

#[test]
fn register_is_written_after_the_data_of_before() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut c = Card::new(&switch.socket(), "c");
    let watcher = Arc::new(Watcher {
        memory: c.memory.clone(),
        seen: Mutex::default(),
    });
    let _b = with_registers(&switch, watcher.clone(), BarMemory::Registers);
    a.program(A);
    c.program(B + 0x1000_0000);
    for number in 1..=200u32 {
        a.write(B + 0x1000_0000 + MEMORY, &number.to_le_bytes())
            .unwrap();
        a.ring(B + 0x1000, number).unwrap();
        let seen = watcher.seen.lock().unwrap().pop();
        assert_eq!(seen, Some((number, number)));
    }
}

#[test]
fn register_write_is_recorded_with_the_peer_that_made_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.flight");
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    let mut c = Card::new(&switch.socket(), "c");
    let recorder = Recorder::create(&path, "b", Level::All).unwrap();
    b.endpoint.record_in(recorder);
    a.program(A);
    c.program(A + 0x1000_0000);
    b.program(B);
    a.ring(B + 0x1008, 17).unwrap();
    c.ring(B + 0x1008, 18).unwrap();
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    let owner = |address| {
        let windows = flight.records.iter();
        let mut windows = windows.filter_map(|record| match record.event {
            Event::PeerWindow(window) if window.range.first().0 == address => Some(window.peer),
            _ => None,
        });
        windows.next().unwrap()
    };
    let written = flight.records.iter();
    let written = written.filter_map(|record| match record.event {
        Event::RegisterWrite(write) => Some(write),
        _ => None,
    });
    let expected = [(A, 17), (A + 0x1000_0000, 18)].map(|(address, value)| RegisterWrite {
        peer: owner(address),
        bar: 0,
        offset: 0x1008,
        len: 4,
        value,
    });
    assert_eq!(written.collect::<Vec<_>>(), expected);
    let snapshot = a.requester.ledger().counters().snapshot();
    let mut kinds = snapshot.iter().map(|(kind, count)| (kind, count.requests));
    let (kind, count) = kinds.next_back().unwrap();
    assert_eq!((kind.purpose, kind.route), (Purpose::Register, Route::Peer));
    assert_eq!(count, 1);
}

#[test]
fn register_of_a_closed_or_moved_window_is_not_written() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    b.configure(COMMAND, &[0, 0]);
    assert!(a.ring(B + 0x1000, 1).is_err());
    b.program(B + 0x1_0000_0000);
    assert!(a.ring(B + 0x1000, 1).is_err());
    assert!(b.notes.0.lock().unwrap().is_empty());
    a.ring(B + 0x1_0000_1000, 2).unwrap();
    a.configure(COMMAND, &[0b010, 0]);
    let error = a.ring(B + 0x1_0000_1000, 3).unwrap_err();
    assert!(matches!(error.cause, DmaFault::NotMaster), "{error}");
    let noted = b.notes.0.lock().unwrap().clone();
    assert_eq!(noted, [(0x1000, 2u32.to_le_bytes().to_vec())]);
}

/// A flood of register writes blocks neither the function's own accesses nor another peer's.
#[test]
fn flood_of_register_writes_lets_guest_and_others_through() {
    let switch = start(&[]);
    let mut flooder = Card::new(&switch.socket(), "flooder");
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    flooder.program(A);
    a.program(A + 0x1000_0000);
    b.program(B);
    let over = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(Barrier::new(8 + 1));
    let floods: Vec<_> = (0..8)
        .map(|_| {
            let (requester, over) = (flooder.requester.clone(), over.clone());
            let begun = begun.clone();
            let write = move || {
                let value = RegisterValue::Word(1);
                requester.write_register(Origin::Device, Iova(B + 0x1000), value)
            };
            std::thread::spawn(move || {
                write().unwrap();
                begun.wait();
                let mut count = 1u64;
                while !over.load(Ordering::Relaxed) {
                    write().unwrap();
                    count += 1;
                }
                count
            })
        })
        .collect();
    begun.wait();
    for value in 0..50 {
        a.ring(B + 0x2000, 1000 + value).unwrap();
        b.endpoint
            .region_write(0, 0x3000, &value.to_le_bytes())
            .unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let floods = floods.into_iter().map(|thread| thread.join().unwrap());
    let flooded: u64 = floods.sum();
    let notes = b.notes.0.lock().unwrap();
    let count = |at| notes.iter().filter(|(offset, _)| *offset == at).count();
    assert_eq!((count(0x2000), count(0x3000)), (50, 50));
    assert_eq!(count(0x1000) as u64, flooded);
    assert!(flooded >= 8);
}

#[test]
fn more_than_one_message_holds_goes_as_several() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    let data: Vec<u8> = (0..0x3000u32).map(|i| i.to_le_bytes()[1]).collect();
    a.write(B, &data).unwrap();
    let whole: Vec<u8> = b
        .notes
        .0
        .lock()
        .unwrap()
        .iter()
        .flat_map(|(_, data)| data.clone())
        .collect();
    assert_eq!(whole, data);
}

#[test]
fn guest_ram_is_not_intercepted_by_a_window_of_a_peer() {
    const RAM: u64 = 0x4000_0000;
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut hostile = Card::new(&switch.socket(), "hostile");
    let ram = MemoryFile::create("ram", 0x1000).unwrap();
    let fd = ram.file().try_clone().unwrap().into();
    a.requester
        .map(
            Range::new(Iova(RAM + MEMORY), 0x1000).unwrap(),
            MapAccess::READ_WRITE,
            Some((fd, 0)),
        )
        .unwrap();
    a.program(A);
    hostile.program(RAM);
    a.write(RAM + MEMORY, &[1; 8]).unwrap();
    let mut data = [0; 8];
    ram.read(0, &mut data).unwrap();
    assert_eq!(data, [1; 8]);
    hostile.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    // With an IOMMU a mapping may have the address of a window in a hole. The switch routes first, as in hardware.
    let fd = ram.file().try_clone().unwrap().into();
    a.requester
        .map(
            Range::new(Iova(B + MEMORY), 0x1000).unwrap(),
            MapAccess::READ_WRITE,
            Some((fd, 0)),
        )
        .unwrap();
    hostile.program(B);
    a.write(B + MEMORY, &[2; 8]).unwrap();
    hostile.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [2; 8]);
}

#[test]
fn a_window_that_is_closed_or_moved_is_left_at_once() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    a.write(B + MEMORY, &[1; 8]).unwrap();
    b.configure(COMMAND, &[0, 0]);
    for target in [B, B + MEMORY] {
        let error = a.write(target, &[2; 8]).unwrap_err();
        assert!(matches!(error.cause, DmaFault::Upstream(_)), "{error}");
    }
    b.program(B + 0x1_0000_0000);
    assert!(a.write(B + MEMORY, &[2; 8]).is_err());
    a.write(B + 0x1_0000_0000 + MEMORY, &[3; 8]).unwrap();
    b.endpoint.reset().unwrap();
    assert!(a.write(B + 0x1_0000_0000 + MEMORY, &[4; 8]).is_err());
    let mut data = [0; 8];
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [3; 8]);
    assert!(b.notes.0.lock().unwrap().is_empty());
}

#[test]
fn a_requester_without_bus_mastering_reaches_no_peer() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    a.configure(COMMAND, &[0b010, 0]);
    let error = a.write(B + MEMORY, &[1; 8]).unwrap_err();
    assert!(matches!(error.cause, DmaFault::NotMaster), "{error}");
    b.write(A + MEMORY, &[2; 8]).unwrap();
}

#[test]
fn each_mode_of_a_link_is_the_requester_s() {
    let modes = [
        ("a", LinkMode::UnsupportedRequest),
        ("b", LinkMode::Route),
        ("c", LinkMode::Drop),
        ("d", LinkMode::Redirect),
    ];
    let switch = start(&modes);
    let mut devices: Vec<Card> = modes
        .iter()
        .map(|(name, _)| Card::new(&switch.socket(), name))
        .collect();
    for (device, base) in devices
        .iter_mut()
        .zip([A, B, A + 0x2000_0000, B + 0x2000_0000])
    {
        device.program(base);
    }
    let [a, b, c, d] = &devices[..] else {
        panic!("four")
    };
    b.write(A + MEMORY, &[1; 8]).unwrap();
    assert_eq!(
        peer_error(a.write(B + MEMORY, &[2; 8])),
        PeerError::Unsupported
    );
    c.write(B + MEMORY, &[3; 8]).unwrap();
    let error = d.write(B + MEMORY, &[4; 8]).unwrap_err();
    assert!(matches!(error.cause, DmaFault::Upstream(_)), "{error}");
    let mut data = [0; 8];
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    assert_eq!(c.bytes(Route::Refused, Completer::None), 8);
}

#[test]
fn a_peer_that_vanishes_fails_its_partners_until_it_is_back() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    let memory = b.memory.clone();
    drop(b);
    // The switch handles messages in order, so it has noticed the end when a's change is complete.
    a.program(A + 0x1000_0000);
    assert_eq!(peer_error(a.write(B + MEMORY, &[1; 8])), PeerError::Gone);
    assert_eq!(peer_error(a.write(B, &[1; 8])), PeerError::Gone);
    let mut data = [0; 8];
    memory.read(0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    let mut b = Card::new(&switch.socket(), "b");
    b.program(B);
    a.write(B + MEMORY, &[2; 8]).unwrap();
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [2; 8]);
}

#[test]
fn without_its_switch_an_endpoint_has_no_peers_until_it_is_back() {
    let mut switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    let mut c = Card::new(&switch.socket(), "c");
    a.program(A);
    b.program(B);
    let moved = B + 0x2000_0000;
    c.program(moved);
    // It knows all windows.
    a.write(moved + MEMORY, &[1; 8]).unwrap();
    switch.end();
    // An announcement returns only when the link's end is known.
    a.program(A + 0x1000_0000);
    for there in [B, B + MEMORY, moved] {
        assert_eq!(peer_error(a.write(there, &[1; 8])), PeerError::Gone);
    }
    a.write(A + 0x1000_0000 + MEMORY, &[1; 8]).unwrap();
    drop(c);
    b.program(B + 0x1000_0000);
    switch.restart(serve(&[]));
    let here = B + 0x1000_0000 + MEMORY;
    wait_until("the peer", || a.write(here, &[2; 8]).is_ok().then_some(()));
    let mut data = [0; 8];
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [2; 8]);
    let there = A + 0x1000_0000;
    wait_until("the registers", || {
        b.write(there, &[3; 4]).is_ok().then_some(())
    });
    assert_eq!(*a.notes.0.lock().unwrap(), [(0, vec![3; 4])]);
    let forgotten = |error: DmaError| matches!(error.cause, DmaFault::Upstream(_));
    for unclaimed in [B + MEMORY, moved] {
        let forgets = || a.write(unclaimed, &[1; 8]).is_err_and(forgotten);
        wait_until("forgetting", || forgets().then_some(()));
    }
}

#[test]
fn a_stalled_peer_is_waited_for_once_and_uses_no_closed_window() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    let mut stalled = Session::new(a.requester.clone());
    let data = MemoryFile::create("data", 0x1000).unwrap();
    data.write(0, &[9; 8]).unwrap();
    let write = |session: &mut Session, to| {
        session.transfer(Purpose::Payload, Direction::Write, to, (&*data, 0), 8)
    };
    // It learns of the window.
    a.write(B + MEMORY + 0x100, &[1; 8]).unwrap();
    assert_eq!(write(&mut stalled, Iova(B + MEMORY + 0x100)), Some(Ok(())));
    let range = [(Iova(B + MEMORY), 8)];
    let pinned = stalled.pin(Purpose::Payload, Direction::Write, range);
    let pinned = pinned.unwrap();
    assert_eq!(pinned.intact(), Ok(()));
    // From here until the pin is released, its thread relies on the old routes.
    let begun = Instant::now();
    b.program(B + 0x1000_0000);
    let first = begun.elapsed();
    assert!(first >= CLOSING_TIME_OUT, "{first:?}");
    // It does not delay further changes: otherwise these would take 50 s or more.
    for base in (0..200).map(|number| B + 0x1000_0000 * (number % 2)) {
        b.program(base);
    }
    let all = begun.elapsed();
    assert!(all < first + 160 * CLOSING_TIME_OUT, "{all:?}");
    assert!(pinned.intact().is_err());
    drop(pinned);
    // It continues, and notices a change that it has not learned of.
    assert_eq!(write(&mut stalled, Iova(B + MEMORY)), None);
    let mut data = [1; 8];
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    assert!(a.write(B + MEMORY, &[2; 8]).is_err());
    a.write(B + 0x1000_0000 + MEMORY, &[1; 8]).unwrap();
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [1; 8]);
    b.write(A + MEMORY, &[3; 8]).unwrap();
}

#[test]
fn the_first_request_after_an_opening_goes_to_the_window() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    // An opening is answered at once, so the next request may come before the peers have learned of
    // the window.
    for round in 0..200 {
        b.program(B);
        a.write(B + MEMORY, &[7; 8]).unwrap();
        assert_eq!(a.bytes(Route::Peer, Completer::PeerBar), 8 * (round + 1));
        b.configure(COMMAND, &[0, 0]);
        assert!(a.write(B + MEMORY, &[8; 8]).is_err());
    }
    let mut data = [0; 8];
    b.memory.read(0, &mut data).unwrap();
    assert_eq!(data, [7; 8]);
}

#[test]
fn two_that_move_and_transfer_to_each_other_at_once_get_on() {
    let switch = start(&[]);
    let mut a = Card::new(&switch.socket(), "a");
    let mut b = Card::new(&switch.socket(), "b");
    a.program(A);
    b.program(B);
    let over = Arc::new(AtomicBool::new(false));
    let transfers = [(&a, B), (&b, A)].map(|(device, target)| {
        let (requester, over) = (device.requester.clone(), over.clone());
        std::thread::spawn(move || {
            let mut done = 0;
            // On a busy machine the thread may not have run before the moves end.
            while !over.load(Ordering::Relaxed) || done == 0 {
                for address in [target + MEMORY, target] {
                    // The request fails while the peer has another address.
                    done += u32::from(
                        requester
                            .write(Purpose::Payload, Iova(address), &[1; 0x1000])
                            .is_ok(),
                    );
                }
            }
            done
        })
    });
    let moves = [(a, A), (b, B)].map(|(mut device, home)| {
        std::thread::spawn(move || {
            for _ in 0..100 {
                device.program(home + 0x1000_0000);
                device.program(home);
            }
            device
        })
    });
    let devices = moves.map(|thread| thread.join().unwrap());
    devices[0].write(B + MEMORY, &[7; 8]).unwrap();
    devices[1].write(A + MEMORY, &[7; 8]).unwrap();
    over.store(true, Ordering::Relaxed);
    for thread in transfers {
        assert!(thread.join().unwrap() > 0);
    }
}
