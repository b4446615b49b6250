//! A peer drives queues of a disk: they lie in its memory, and it rings their doorbells through the
//! switch.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_dma::{Origin, Purpose, RegisterValue};
use peerbar_flight::{Event, FlightFile, RegisterWrite};
use peerbar_nvme_driver::{
    Controller, DmaMemory, Doorbell, PAGE, QueueMemory, QueuePair, Registers, prps,
};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_pci::Iova;
use peerbar_rig::gpu::Command;
use peerbar_rig::{Client, Daemon, GuestRam, Link, Peer, PeerRegisters, REGISTERS};
use tempfile::TempDir;
use zerocopy::{FromZeros, transmute};

use crate::channel::Channel;
use crate::machine::{RAM, RAM_BYTES};
use crate::memory::{BLOCK, block};
use crate::server;

const WRITE: u8 = 1;
const READ: u8 = 2;
/// The addresses of the disk's registers and of the peer's memory.
const DOORS: u64 = 3 << 36;
const PEER: u64 = 5 << 36;
const PEER_BYTES: u64 = 4 << 20;
/// Blocks of a command: more than two pages, so that it takes a PRP list.
const COUNT: u64 = 5;
const BYTES: usize = 5 * BLOCK;
/// Polling modes: whether the disk must be notified of doorbells.
const ADAPTIVE: &str = "adaptive";
const ALWAYS: &str = "always";
/// Transfers in each direction.
const ROUNDS: u16 = 40;
const TIME_OUT: Duration = Duration::from_secs(30);

type Host = Controller<Client, GuestRam>;

/// A disk and a peer below a switch.
struct Fixture {
    // First, so that it is dropped before the servers and does not see their end.
    peer: Peer,
    client: Client,
    host: Host,
    host_queue: QueuePair<Client, GuestRam>,
    disk: Daemon,
    flight: PathBuf,
    switch: Daemon,
    _folder: TempDir,
}

impl Fixture {
    fn start(link: Option<&str>, poll: &str) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let words: Vec<&str> = link.into_iter().flat_map(|link| ["--link", link]).collect();
        let switch = server::start("peerbar-switch", &words)?;
        let flight = folder.path().join("disk0.flight");
        let (switch_at, record) = (switch.socket().display(), flight.display());
        let words = format!(
            "--switch {switch_at} --port-name disk0 --serial disk0 --namespace ram=4M --flight {record} --record all --poll {poll}"
        );
        let words: Vec<&str> = words.split(' ').collect();
        let disk = server::start("peerbar-nvme", &words)?;
        let ram = GuestRam::new(RAM, RAM_BYTES);
        let client = Client::attach(disk.socket(), &ram)?;
        client.set_bar(REGISTERS, DOORS)?;
        let mut host = Controller::enable(client.clone(), ram, queues(RAM))?;
        let host_queue = host.create_queues(1, queues(RAM + 2 * PAGE))?;
        let peer = Peer::attach(switch.socket(), "peer0", PEER, PEER_BYTES);
        Ok(Self {
            peer,
            client,
            host,
            host_queue,
            disk,
            flight,
            switch,
            _folder: folder,
        })
    }

    /// Makes queues in the peer's memory, whose doorbells the peer rings.
    fn peer_queue(&mut self, id: u16) -> anyhow::Result<QueuePair<PeerRegisters, GuestRam>> {
        let at = queues(PEER + 2 * PAGE * u64::from(id));
        let (memory, registers) = (self.peer.memory.clone(), self.peer.registers(DOORS));
        memory.write(at.completion, &[0; 4096])?;
        let offsets = self.host.create_queues_at(id, at)?;
        let doorbells =
            offsets.map(|offset| Doorbell::new(registers.clone(), memory.clone(), offset, None));
        Ok(QueuePair::new(memory, at, doorbells)?)
    }

    /// Checks that the host still writes and reads.
    fn check_host(&mut self, stamp: u64) -> anyhow::Result<()> {
        let ram = self.host.memory().clone();
        let data = RAM + (1 << 20);
        ram.write(data, &blocks(stamp))?;
        run(&mut self.host_queue, &ram, WRITE, data)?;
        ram.write(data, &[0xff; BYTES])?;
        run(&mut self.host_queue, &ram, READ, data)?;
        ensure!(
            ram.bytes_at(data, blocks(stamp).len())? == blocks(stamp),
            "the host reads wrong data"
        );
        server::check_alive(&mut self.disk)
    }

    /// Returns the register writes by peers that the disk recorded.
    fn recorded(&self) -> anyhow::Result<Vec<RegisterWrite>> {
        let flight = FlightFile::open(&self.flight)?.read()?;
        let written = flight.records.iter();
        let written = written.filter_map(|record| match record.event {
            Event::RegisterWrite(write) => Some(write),
            _ => None,
        });
        Ok(written.collect())
    }

    fn end(self) -> anyhow::Result<()> {
        drop((self.peer, self.host_queue, self.host, self.client));
        server::end(self.disk)?;
        server::end(self.switch)
    }
}

fn queues(submission: u64) -> QueueMemory {
    QueueMemory {
        submission,
        completion: submission + PAGE,
        submission_entries: 6,
        completion_entries: 4,
    }
}

fn blocks(stamp: u64) -> Vec<u8> {
    (stamp..stamp + COUNT).flat_map(block).collect()
}

/// Transfers the first blocks of the disk by a command, with data at `data` followed by a PRP list.
fn run<R: Registers>(
    queue: &mut QueuePair<R, GuestRam>,
    memory: &GuestRam,
    opcode: u8,
    data: u64,
) -> anyhow::Result<()> {
    let pages: Vec<u64> = (0..COUNT).map(|page| data + page * PAGE).collect();
    let list = data + COUNT * PAGE;
    let [prp1, prp2] = prps(&pages, memory, || Ok::<_, std::io::Error>(list))?;
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = opcode;
    entry.nsid = 1.into();
    entry.cid = queue.tail().into();
    [entry.prp1, entry.prp2] = [prp1, prp2].map(Into::into);
    entry.cdw12 = u32::try_from(COUNT * 8 - 1)?.into();
    queue.push(&transmute!(entry))?;
    queue.ring_tail()?;
    let completion = completion(queue)?.context("no completion")?;
    queue.ring_head()?;
    ensure!(completion == 0, "a command ends with {completion:#x}");
    Ok(())
}

/// Returns the status of the next completion, if it comes in time.
fn completion<R: Registers>(queue: &mut QueuePair<R, GuestRam>) -> anyhow::Result<Option<u16>> {
    let begun = Instant::now();
    while begun.elapsed() < TIME_OUT {
        if let Some(completion) = queue.pop()? {
            return Ok(Some(completion.status & 0x7ff));
        }
        thread::yield_now();
    }
    Ok(None)
}

/// Peer and host write and read in turn, each by its own queue.
fn transfer_in_turn(fixture: &mut Fixture) -> anyhow::Result<()> {
    let mut queue = fixture.peer_queue(2)?;
    let memory = fixture.peer.memory.clone();
    let data = PEER + (1 << 20);
    for round in 0..ROUNDS {
        let stamp = 1 + u64::from(round) * COUNT;
        fixture.check_host(stamp)?;
        let content = blocks(stamp);
        memory.write(data, &vec![0xff; content.len()])?;
        run(&mut queue, &memory, READ, data)?;
        let is_right = memory.bytes_at(data, content.len())? == content;
        ensure!(is_right, "the peer reads wrong data");
        memory.write(data, &blocks(stamp + 7))?;
        run(&mut queue, &memory, WRITE, data)?;
    }
    Ok(())
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn peer_drives_its_queues_beside_those_of_the_host() {
    let mut fixture = Fixture::start(None, ADAPTIVE).unwrap();
    transfer_in_turn(&mut fixture).unwrap();
    let written = fixture.recorded().unwrap();
    let offsets: Vec<u64> = written.iter().map(|write| write.offset).collect();
    // The tail and the head of queue 2, for a Read and a Write.
    let expected = [0x1010, 0x1014].repeat(2 * usize::from(ROUNDS));
    assert_eq!(offsets, expected);
    let peers: Vec<u32> = written.iter().map(|write| write.peer).collect();
    assert!(peers.iter().all(|peer| *peer == peers[0] && *peer > 0));
    fixture.end().unwrap();
}

/// A disk that always polls lends its doorbells.
#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn peer_rings_a_polling_disk_without_a_message() {
    let mut fixture = Fixture::start(None, ALWAYS).unwrap();
    transfer_in_turn(&mut fixture).unwrap();
    assert_eq!(fixture.recorded().unwrap(), []);
    let registers = fixture.peer.registers(DOORS);
    registers.write_register(0x3000, &[0; 4]).unwrap();
    assert_eq!(
        fixture.recorded().unwrap().len(),
        1,
        "no doorbell: by message"
    );
    // Values that no queue can have, in all doorbells.
    let junk = [0xff; 0x208];
    for stamp in 0..10 {
        let requester = &fixture.peer.requester;
        requester
            .write(Purpose::Payload, Iova(DOORS + 0x1000), &junk)
            .unwrap();
        fixture.check_host(10 + stamp).unwrap();
    }
    let rung = |registers: &PeerRegisters| registers.write_register(0x1010, &[0; 4]);
    rung(&registers).unwrap();
    fixture
        .client
        .set_bar(REGISTERS, DOORS + (1 << 32))
        .unwrap();
    assert!(rung(&registers).is_err(), "the window has moved");
    fixture.peer.set_mastering(false);
    assert!(rung(&fixture.peer.registers(DOORS + (1 << 32))).is_err());
    fixture.end().unwrap();
}

/// The GPU's engine sleeps, so a doorbell of a peer must be more than a store.
#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn peer_wakes_a_gpu_that_sleeps() {
    let switch = server::start("peerbar-switch", &[]).unwrap();
    let switch_at = switch.socket().display().to_string();
    let words = ["--vram", "16M", "--switch", &switch_at];
    let gpu = server::start("peerbar-gpu", &words).unwrap();
    let ram = GuestRam::new(RAM, RAM_BYTES);
    let client = Client::attach(gpu.socket(), &ram).unwrap();
    client.set_bar(REGISTERS, DOORS).unwrap();
    let (from, to) = (RAM + (2 << 20), RAM + (3 << 20));
    let mut channel = Channel::enable(client, ram.clone(), 1, RAM).unwrap();
    let peer = Peer::attach(switch.socket(), "peer0", PEER, PEER_BYTES);
    let registers = peer.registers(DOORS);
    for stamp in 1..5 {
        ram.write(from, &block(stamp)).unwrap();
        let begun = Instant::now();
        while !channel.sleeps().unwrap() {
            assert!(begun.elapsed() < TIME_OUT, "the engine does not sleep");
            thread::yield_now();
        }
        let copy = Command::copy(0, from, to, BLOCK as u64);
        let (doorbell, value) = channel.put_silently(&copy).unwrap();
        registers
            .write_register(doorbell, &value.to_le_bytes())
            .unwrap();
        while channel.result().unwrap().is_none() {
            assert!(begun.elapsed() < TIME_OUT, "the command is not fetched");
            thread::yield_now();
        }
        assert!(ram.bytes_at(to, BLOCK).unwrap() == block(stamp));
    }
    drop((peer, channel));
    server::end(gpu).unwrap();
    server::end(switch).unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn hostile_peer_neither_stops_nor_fools_the_disk() {
    let mut fixture = Fixture::start(None, ADAPTIVE).unwrap();
    let mut queue = fixture.peer_queue(2).unwrap();
    fixture.check_host(1).unwrap();
    let requester = fixture.peer.requester.clone();
    let word = |offset, value| {
        let value = RegisterValue::Word(value);
        requester.write_register(Origin::Device, Iova(DOORS + offset), value)
    };
    // Values that no queue can have, doorbells of no queue, the table of vectors.
    for (offset, value) in [
        (0x1010, 0xffff),
        (0x1010, 0xffff_0006),
        (0x1014, 4),
        (0x1018, 1),
        (0x11f8, 1),
        (0x2000, !0),
        (0x3ffc, !0),
    ] {
        word(offset, value).unwrap();
        fixture.check_host(10).unwrap();
    }
    // CC, CMBMSC and a reserved register: a peer must not write any of them.
    for offset in [0x14, 0x50, 0x0ffc] {
        word(offset, 0).unwrap_err();
        fixture.check_host(10).unwrap();
    }
    // Wrong sizes, across registers, and beyond the BAR.
    for (offset, bytes, is_answered) in [
        (0x1010, 1, true),
        (0x1011, 4, true),
        (0x100e, 8, true),
        (0x1008, 0x2ff8, true),
        (0x3ffe, 4, false),
        (0x4000, 4, false),
    ] {
        let written = requester.write(Purpose::Payload, Iova(DOORS + offset), &vec![1; bytes]);
        assert_eq!(written.is_ok(), is_answered, "{offset:#x}");
        fixture.check_host(20).unwrap();
    }
    // A flood.
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = || {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                word(0x1010, 0).unwrap();
                count += 1;
            }
            count
        };
        let floods: Vec<_> = (0..4).map(|_| scope.spawn(flood)).collect();
        let begun = Instant::now();
        for stamp in 0..20 {
            fixture.check_host(30 + stamp).unwrap();
        }
        let took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        let counts = floods.into_iter().map(|flood| flood.join().unwrap());
        assert!(counts.sum::<u32>() > 0);
        assert!(took < TIME_OUT, "{took:?}");
    });
    // Its own queue has had impossible values, and still works.
    let memory = fixture.peer.memory.clone();
    run(&mut queue, &memory, READ, PEER + (1 << 20)).unwrap();
    fixture.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn closed_window_or_lost_mastering_stops_the_doorbell() {
    let mut fixture = Fixture::start(None, ADAPTIVE).unwrap();
    let mut queue = fixture.peer_queue(2).unwrap();
    let memory = fixture.peer.memory.clone();
    let data = PEER + (1 << 20);
    run(&mut queue, &memory, READ, data).unwrap();
    fixture.peer.set_mastering(false);
    assert!(queue.ring_tail().is_err());
    fixture.peer.set_mastering(true);
    run(&mut queue, &memory, READ, data).unwrap();
    fixture
        .client
        .set_bar(REGISTERS, DOORS + (1 << 32))
        .unwrap();
    assert!(queue.ring_tail().is_err(), "the window has moved");
    let moved = fixture.peer.registers(DOORS + (1 << 32));
    moved.write_register(0x1010, &0u32.to_le_bytes()).unwrap();
    let written = fixture.recorded().unwrap();
    assert_eq!(written.len(), 5, "{written:?}");
    fixture.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn doorbell_of_each_link_mode_has_its_fate() {
    for (mode, fails) in [
        ("redirect", true),
        ("unsupported-request", true),
        ("drop", false),
    ] {
        let mut fixture = Fixture::start(Some(&format!("peer0={mode}")), ADAPTIVE).unwrap();
        let registers = fixture.peer.registers(DOORS);
        let rung = registers.write_register(0x1008, &0u32.to_le_bytes());
        assert_eq!(rung.is_err(), fails, "{mode}: {rung:?}");
        assert_eq!(fixture.recorded().unwrap(), [], "{mode}");
        fixture.check_host(1).unwrap();
        fixture.end().unwrap();
    }
}
