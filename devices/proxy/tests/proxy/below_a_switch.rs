//! A proxy and a device of ours below one switch.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use peerbar_dma::{Buffer, MemoryFile, Origin, Purpose, RegisterValue, Requester, Span};
use peerbar_endpoint::{BarMemory, Endpoint, Vectors};
use peerbar_flight::FlightFile;
use peerbar_nvme_driver::DmaMemory;
use peerbar_pci::{Bar, ConfigSpace, Iova};
use peerbar_rig::wire::{self, command};
use peerbar_rig::{Client, Daemon, GuestRam, Link, Notes, RawServer, Ready, ServerThread, pattern};
use peerbar_switch::{CLOSING_TIME_OUT, Config, ENDPOINT_TIME_OUT, LinkMode};
use peerbar_vfio_user::{CONFIG_REGION, Device};
use tempfile::TempDir;

use crate::copier::{CopierServer, ENDED, LENGTH, MEMORY_BAR, SOURCE, TO, copy};
use crate::{below, until};

const RAM: u64 = 0x10_0000;
/// The BARs of the proxy's device, and those of the card.
const REGISTERS: u64 = 0x38_0000_0000;
const MEMORY: u64 = 0x38_0010_0000;
const CARD: u64 = 0x39_0000_0000;
const CARD_BYTES: u64 = 0x1_0000;
const CARD_REGISTERS: u64 = 0x39_0010_0000;

fn switch(modes: &[(&str, LinkMode)]) -> ServerThread {
    let modes = modes.iter();
    let modes = modes.map(|(name, mode)| ((*name).to_owned(), *mode));
    let config = Config {
        modes: modes.collect(),
        ..Config::default()
    };
    ServerThread::start(|path: &Path, stop: UnixStream, ready: Ready| {
        peerbar_switch::serve(path, config, None, &stop, ready).unwrap();
    })
}

/// An endpoint of ours with memory in BAR0 and registers in BAR2.
struct Card {
    endpoint: Endpoint<Notes>,
    notes: Arc<Notes>,
    requester: Arc<Requester>,
    memory: Arc<MemoryFile>,
}

impl Card {
    fn new(switch: &Path) -> Self {
        Self::at(CARD, switch, "card")
    }

    /// Makes a card whose memory is at `address`, and whose port has this name.
    fn at(address: u64, switch: &Path, name: &str) -> Self {
        let bar = |index, size| Bar::new(index, size, true).unwrap();
        let config = ConfigSpace::of_test_function(&[bar(0, CARD_BYTES), bar(2, 0x4000)]);
        let memory = Arc::new(MemoryFile::create("card", CARD_BYTES).unwrap());
        let span = Span {
            file: memory.clone(),
            offset: 0,
        };
        let notes = Arc::new(Notes::default());
        let requester = Arc::new(Requester::new());
        let vectors = Arc::new(Vectors::new(1).unwrap());
        let behind = [BarMemory::Memory(span), BarMemory::Registers];
        let mut endpoint = Endpoint::new(notes.clone(), config, behind, requester.clone(), vectors);
        endpoint.attach_to_switch(switch, name).unwrap();
        let mut card = Self {
            endpoint,
            notes,
            requester,
            memory,
        };
        let registers = address + (CARD_REGISTERS - CARD);
        card.configure(0x10, &address.to_le_bytes());
        card.configure(0x18, &registers.to_le_bytes());
        card.set_command(0b110);
        card
    }

    fn configure(&mut self, offset: u64, data: &[u8]) {
        let written = self.endpoint.region_write(CONFIG_REGION, offset, data);
        written.unwrap();
    }

    fn set_command(&mut self, command: u8) {
        self.configure(4, &[command, 0]);
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read(offset, &mut data).unwrap();
        data
    }
}

/// A copier behind a proxy, and a card, below one switch.
struct Rig {
    card: Card,
    client: Client,
    /// Killed before its server ends.
    daemon: Daemon,
    server: CopierServer,
    _switch: ServerThread,
}

impl Rig {
    fn new(modes: &[(&str, LinkMode)], more: &[&str]) -> Self {
        let switch = switch(modes);
        let server = CopierServer::start();
        let daemon = below(&switch.socket(), &server.path(), more);
        let ram = GuestRam::new(RAM, 0x10_0000);
        ram.write(RAM, &pattern(0x1000, 3)).unwrap();
        let client = Client::attach(daemon.socket(), &ram).unwrap();
        client.set_bar(0, REGISTERS).unwrap();
        client.set_bar(MEMORY_BAR, MEMORY).unwrap();
        let card = Card::new(&switch.socket());
        Self {
            card,
            client,
            daemon,
            server,
            _switch: switch,
        }
    }
}

#[test]
fn windows_of_a_peer_are_memory_of_the_server_while_they_are_open() {
    let mut rig = Rig::new(&[], &[]);
    rig.server.wait_for_mapping(CARD, Some((CARD_BYTES, true)));
    rig.server
        .wait_for_mapping(CARD_REGISTERS, Some((0x4000, false)));
    assert!(copy(&rig.client, RAM, CARD + 0x800, 0x1000));
    assert_eq!(rig.card.bytes(0x800, 0x1000), pattern(0x1000, 3));
    rig.card.set_command(0);
    // The window has been taken back before the card's write was answered.
    assert_eq!(rig.server.state.lock().unwrap().mapping(CARD), None);
    assert!(!copy(&rig.client, RAM, CARD, 8));
    rig.card.set_command(0b110);
    rig.server.wait_for_mapping(CARD, Some((CARD_BYTES, true)));
    rig.card.set_command(0);
    rig.card.configure(0x10, &(CARD + 0x100_0000).to_le_bytes());
    rig.card.set_command(0b110);
    rig.server
        .wait_for_mapping(CARD + 0x100_0000, Some((CARD_BYTES, true)));
    drop(rig.card);
    rig.server.wait_for_mapping(CARD + 0x100_0000, None);
}

#[test]
fn peers_registers_are_written_by_messages() {
    let rig = Rig::new(&[], &[]);
    rig.server
        .wait_for_mapping(CARD_REGISTERS, Some((0x4000, false)));
    assert!(copy(&rig.client, RAM, CARD_REGISTERS + 0x20, 8));
    let notes = rig.card.notes.0.lock().unwrap().clone();
    assert_eq!(notes, [(0x20, pattern(8, 3))]);
    assert!(copy(&rig.client, CARD_REGISTERS, CARD, 8));
    assert_eq!(rig.card.bytes(0, 8), [0x5a; 8]);
}

#[test]
fn window_replaces_the_clients_mapping_of_it() {
    let rig = Rig::new(&[], &[]);
    rig.client
        .map((CARD & !0xff_ffff, 0x200_0000), None)
        .unwrap();
    rig.server.wait_for_mapping(CARD, Some((CARD_BYTES, true)));
    let (start, after) = (CARD & !0xff_ffff, CARD + CARD_BYTES);
    if start < CARD {
        let before = Some((CARD - start, false));
        rig.server.wait_for_mapping(start, before);
    }
    let gap = CARD_REGISTERS - after;
    rig.server.wait_for_mapping(after, Some((gap, false)));
    assert!(copy(&rig.client, RAM, CARD, 0x1000));
    assert_eq!(rig.card.bytes(0, 0x1000), pattern(0x1000, 3));
}

#[test]
fn port_that_redirects_or_refuses_lends_no_memory() {
    for (mode, succeeds) in [
        (LinkMode::Redirect, true),
        (LinkMode::UnsupportedRequest, false),
    ] {
        let rig = Rig::new(&[("proxy", mode)], &[]);
        // As QEMU maps the BARs of other devices.
        rig.client.map((CARD, CARD_BYTES), None).unwrap();
        rig.server.wait_for_mapping(CARD, Some((CARD_BYTES, false)));
        let upstream = rig.client.upstream().clone();
        let card = GuestRam::new(CARD, CARD_BYTES);
        upstream.answer_from(vec![card.clone()]);
        let done = copy(&rig.client, RAM, CARD, 0x1000);
        assert_eq!(done, succeeds, "{mode:?}");
        let through_the_root = card.bytes_at(CARD, 0x1000).unwrap();
        let expected = if succeeds {
            pattern(0x1000, 3)
        } else {
            vec![0; 0x1000]
        };
        assert_eq!(through_the_root, expected, "{mode:?}");
        assert_eq!(rig.card.bytes(0, 0x1000), [0; 0x1000]);
    }
}

#[test]
fn what_is_counted_slowed_or_made_to_fail_comes_by_messages() {
    for (option, succeeds) in [
        (["--count-all", "--record=all"].as_slice(), true),
        (&["--link-latency", "1us"], true),
        (&["--fault", "fail dma write"], false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let flight = folder.path().join("flight").display().to_string();
        let recorded = ["--flight", &flight];
        let mut rig = Rig::new(&[], &[option, &recorded].concat());
        rig.server.wait_for_mapping(CARD, Some((CARD_BYTES, false)));
        let ram = rig.server.state.lock().unwrap().mapping(RAM);
        assert_eq!(ram, Some((0x10_0000, false)), "{option:?}");
        let done = copy(&rig.client, RAM, CARD, 0x1000);
        assert_eq!(done, succeeds, "{option:?}");
        let expected = if succeeds {
            pattern(0x1000, 3)
        } else {
            vec![0; 0x1000]
        };
        assert_eq!(rig.card.bytes(0, 0x1000), expected, "{option:?}");
        rig.daemon.terminate();
        let recorded = FlightFile::open(Path::new(&flight)).unwrap();
        assert!(recorded.read().unwrap().header.ended, "{option:?}");
    }
}

/// Sends a line to a daemon's control socket, which must accept it.
#[track_caller]
fn control(path: &Path, line: &str) {
    let mut stream = UnixStream::connect(path).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("ok"), "{line}: {answer}");
}

#[test]
fn memory_is_lent_as_long_as_no_fault_needs_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let rig = Rig::new(&[], &["--control", path.to_str().unwrap()]);
    let mapped = |has_memory| {
        let server = &rig.server;
        server.wait_for_mapping(CARD, Some((CARD_BYTES, has_memory)));
        server.wait_for_mapping(RAM, Some((0x10_0000, has_memory)));
    };
    mapped(true);
    control(&path, "fail dma write");
    mapped(false);
    assert!(!copy(&rig.client, RAM, CARD, 8));
    control(&path, "clear");
    mapped(true);
    assert!(copy(&rig.client, RAM, CARD, 8));
    control(&path, "link-down device");
    mapped(false);
    control(&path, "link-up device");
    mapped(true);
    control(&path, "link-down device for=1s");
    mapped(true);
}

#[test]
fn peers_reach_memory_and_registers_of_the_server() {
    let rig = Rig::new(&[], &[]);
    let requester = &rig.card.requester;
    let data = pattern(0x1000, 5);
    requester
        .write(Purpose::Payload, Iova(MEMORY + 0x3000), &data)
        .unwrap();
    let mut seen = vec![0; 0x1000];
    rig.server.memory.read(0x3000, &mut seen).unwrap();
    assert_eq!(seen, data);
    let ring = |offset, value| {
        let address = Iova(REGISTERS + offset);
        requester.write_register(Origin::Device, address, value)
    };
    ring(SOURCE, RegisterValue::Quad(MEMORY + 0x3000)).unwrap();
    ring(TO, RegisterValue::Quad(CARD)).unwrap();
    ring(LENGTH, RegisterValue::Word(0x1000)).unwrap();
    let mut ended = [0; 4];
    until("the copy has ended", || {
        let read = Buffer::Read(&mut ended);
        requester
            .access(Purpose::Payload, Iova(REGISTERS + ENDED), read)
            .unwrap();
        ended == [1, 0, 0, 0]
    });
    assert_eq!(rig.card.bytes(0, 0x1000), data);
    rig.client.set_command(0);
    let closed = requester.write(Purpose::Payload, Iova(MEMORY), &data);
    assert!(closed.is_err(), "the window is closed");
}

#[test]
fn server_that_keeps_a_window_costs_its_own_device_only() {
    let switch = switch(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let (mapped, mappings) = channel();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        RawServer::new(stream).serve(|_, asked| {
            if asked.command == command::DMA_MAP {
                mapped.send(asked.descriptors.len()).unwrap();
            }
            asked.command == command::DMA_UNMAP
        });
    });
    let mut daemon = below(&switch.socket(), &path, &[]);
    let mut card = Card::new(&switch.socket());
    assert_eq!([(); 2].map(|()| mappings.recv().unwrap()), [1, 0]);
    // It returns although the server does not answer, and so does the next one.
    let begun = Instant::now();
    card.set_command(0);
    assert!(begun.elapsed() >= CLOSING_TIME_OUT, "it is acknowledged");
    card.set_command(0b110);
    let exit = daemon.end();
    assert_eq!(exit.code, Some(69));
    let line = exit.stderr.lines().last().unwrap();
    assert!(
        line.ends_with("it has not answered a message for 10s"),
        "{line}"
    );
    server.join().unwrap();
    let done = card.requester.write(Purpose::Payload, Iova(RAM), &[1]);
    assert!(done.is_err(), "the card has no memory there, and answers");
}

/// A server that writes by a message before it confirms each DMA_UNMAP, once it is asked to, and its
/// proxy.
struct RequestingServer {
    daemon: Daemon,
    /// The number of descriptors of each DMA_MAP.
    mappings: Receiver<usize>,
    ask: Sender<()>,
    /// The flags of the answer to each write.
    answer: Receiver<u32>,
    server: JoinHandle<()>,
    _folder: TempDir,
}

impl RequestingServer {
    /// Starts a server that writes 8 bytes at `address`.
    fn start(switch: &ServerThread, address: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let listener = UnixListener::bind(&path).unwrap();
        let ((mapped, mappings), (ask, asked)) = (channel(), channel());
        let (answered, answer) = channel();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            RawServer::new(stream).serve(|server, message| {
                match message.command {
                    command::DMA_MAP => mapped.send(message.descriptors.len()).unwrap(),
                    command::DMA_UNMAP if asked.recv().is_ok() => {
                        let written = wire::quads(&[address, 8, 7]);
                        server.send(&wire::message(1, command::DMA_WRITE, 0, &written), &[]);
                        answered.send(server.receive().flags).unwrap();
                    }
                    _ => {}
                }
                false
            });
        });
        Self {
            daemon: below(&switch.socket(), &path, &[]),
            mappings,
            ask,
            answer,
            server,
            _folder: folder,
        }
    }

    /// Ends the proxy, and waits for the server.
    fn end(self) {
        drop((self.ask, self.daemon));
        self.server.join().unwrap();
    }
}

#[test]
fn servers_request_before_it_takes_a_window_back_is_executed() {
    let switch = switch(&[]);
    let requesting = RequestingServer::start(&switch, RAM);
    let ram = GuestRam::new(RAM, 0x1000);
    let client = Client::attach(requesting.daemon.socket(), &ram).unwrap();
    client.set_command(0b110);
    let mut card = Card::new(&switch.socket());
    assert_eq!(
        [(); 3].map(|()| requesting.mappings.recv().unwrap()),
        [1, 1, 0]
    );
    card.set_command(0);
    // The server's request has to wait for this change, which comes after the unconfirmed one.
    card.set_command(0b110);
    let begun = Instant::now();
    requesting.ask.send(()).unwrap();
    assert_eq!(requesting.answer.recv().unwrap(), wire::REPLY);
    assert!(begun.elapsed() < ENDPOINT_TIME_OUT, "the switch was left");
    assert_eq!(ram.bytes_at(RAM, 8).unwrap(), [7, 0, 0, 0, 0, 0, 0, 0]);
    drop(client);
    requesting.end();
}

#[test]
fn servers_request_waits_for_changes_after_several_unconfirmed_ones() {
    let switch = switch(&[]);
    let requesting = RequestingServer::start(&switch, CARD);
    let client = Client::attach(requesting.daemon.socket(), &GuestRam::new(RAM, 0x1000)).unwrap();
    client.set_command(0b110);
    let mut card = Card::new(&switch.socket());
    let mut other = Card::at(CARD + 0x100_0000, &switch.socket(), "other");
    let maps = [(); 5].map(|()| requesting.mappings.recv().unwrap());
    assert_eq!(maps, [1, 1, 0, 1, 0]);
    card.set_command(0);
    other.set_command(0);
    // The server's request has to wait for this change, which comes after two unconfirmed ones.
    card.set_command(0b110);
    requesting.ask.send(()).unwrap();
    assert_eq!(
        requesting.answer.recv().unwrap(),
        wire::REPLY,
        "the switch was left"
    );
    assert_eq!(card.bytes(0, 8), [7, 0, 0, 0, 0, 0, 0, 0]);
    drop(client);
    requesting.end();
}

#[test]
fn end_of_the_server_closes_its_windows() {
    let mut rig = Rig::new(&[], &[]);
    let write = |rig: &Rig| {
        let requester = &rig.card.requester;
        requester.write(Purpose::Payload, Iova(MEMORY), &[1; 8])
    };
    write(&rig).unwrap();
    rig.server.end();
    until("the window is closed", || write(&rig).is_err());
    let exit = rig.daemon.end();
    assert_eq!(exit.code, Some(69));
}
