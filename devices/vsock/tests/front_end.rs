//! The daemon `peerbar-vsock` from the view of vhost-user front-ends, usual and hostile ones, and
//! of programs of the host.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test panics if it fails"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use peerbar_rig::{Daemon, DaemonCommand};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{ByteValued, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);
/// Bytes of the guest's memory, from address 0 on.
const MEMORY: u64 = 1 << 20;
/// Descriptors of a queue.
const SIZE: u16 = 8;
const TO_GUEST: usize = 0;
const OF_GUEST: usize = 1;
const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;
/// Operations of packets, and the bytes of their header (virtio 1.2, 5.10.6).
const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const DATA: u16 = 5;
const HEADER: usize = 44;
/// VHOST_USER_F_PROTOCOL_FEATURES.
const PROTOCOL: u64 = 1 << 30;

/// Starts `peerbar-vsock`, whose clients of the host connect to `programs`.
fn start() -> Daemon {
    let command = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-vsock"));
    command.file("--uds-path", "programs").start()
}

/// Returns a program of the host that requests port 5 of the guest.
fn program(daemon: &Daemon) -> UnixStream {
    let mut program = UnixStream::connect(daemon.folder().join("programs")).unwrap();
    program.set_read_timeout(Some(LONG)).unwrap();
    program.write_all(b"CONNECT 5\n").unwrap();
    program
}

/// A descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// Returns the address of a queue's descriptors. Its rings follow, each on a page.
fn table(queue: usize) -> u64 {
    0x4000 * (queue as u64 + 1)
}

fn available_ring(queue: usize) -> u64 {
    table(queue) + 0x1000
}

fn used_ring(queue: usize) -> u64 {
    table(queue) + 0x2000
}

/// Returns the address of a descriptor's buffer.
fn buffer(queue: usize, index: u16) -> u64 {
    0x4_0000 * (queue as u64 + 1) + 0x1000 * u64::from(index)
}

/// A front-end, and the driver of its guest.
struct Vm {
    frontend: Frontend,
    /// The same connection.
    stream: UnixStream,
    memory: GuestMemoryMmap,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Signals of each call.
    called: Vec<Epoll>,
    /// Entries of each queue that were made available.
    available: [u16; 2],
}

impl Vm {
    /// Returns a front-end that has negotiated, shared its memory and started its queues.
    fn start(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let same = stream.try_clone().unwrap();
        let mut frontend = Frontend::from_stream(stream, 3);
        frontend.set_owner().unwrap();
        let wanted = 1 << VIRTIO_F_VERSION_1 | PROTOCOL;
        assert_eq!(frontend.get_features().unwrap() & wanted, wanted);
        frontend.set_features(wanted).unwrap();
        let features = frontend.get_protocol_features().unwrap();
        assert!(features.contains(VhostUserProtocolFeatures::CONFIG));
        frontend.set_protocol_features(features).unwrap();
        let memory = guest_memory();
        let region = memory.iter().next().unwrap();
        let region = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
        frontend.set_mem_table(&[region]).unwrap();
        let mut vm = Self {
            frontend,
            stream: same,
            memory,
            kicks: Vec::new(),
            calls: Vec::new(),
            called: Vec::new(),
            available: [0; 2],
        };
        for queue in [TO_GUEST, OF_GUEST] {
            vm.start_queue(queue, region.userspace_addr);
        }
        vm
    }

    fn start_queue(&mut self, queue: usize, base: u64) {
        let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: base + table(queue),
            used_ring_addr: base + used_ring(queue),
            avail_ring_addr: base + available_ring(queue),
            log_addr: None,
        };
        self.frontend.set_vring_num(queue, SIZE).unwrap();
        self.frontend.set_vring_base(queue, 0).unwrap();
        self.frontend.set_vring_addr(queue, &config).unwrap();
        self.frontend.set_vring_call(queue, &call).unwrap();
        self.frontend.set_vring_kick(queue, &kick).unwrap();
        self.frontend.set_vring_enable(queue, true).unwrap();
        let called = Epoll::new().unwrap();
        let event = EpollEvent::new(EventSet::IN, 0);
        called
            .ctl(ControlOperation::Add, call.as_raw_fd(), event)
            .unwrap();
        self.called.push(called);
        self.kicks.push(kick);
        self.calls.push(call);
    }

    fn put<T: ByteValued>(&self, value: T, address: u64) {
        self.memory.write_obj(value, GuestAddress(address)).unwrap();
    }

    fn get<T: ByteValued>(&self, address: u64) -> T {
        self.memory.read_obj(GuestAddress(address)).unwrap()
    }

    fn describe(&self, queue: usize, index: u16, descriptor: Descriptor) {
        let at = table(queue) + 16 * u64::from(index);
        let (address, length, flags, next) = descriptor;
        self.put(address, at);
        self.put(length, at + 8);
        self.put(flags, at + 12);
        self.put(next, at + 14);
    }

    /// Makes the chain that begins at the descriptor `head` available.
    fn offer(&mut self, queue: usize, head: u16) {
        let slot = self.available[queue] % SIZE;
        self.put(head, available_ring(queue) + 4 + 2 * u64::from(slot));
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.announce(queue, self.available[queue]);
    }

    /// Announces that the entries before `index` are available.
    fn announce(&self, queue: usize, index: u16) {
        self.put(index, available_ring(queue) + 2);
        self.kicks[queue].write(1).unwrap();
    }

    /// Waits until the chain of `head` is the last one that the device has used. Returns the number
    /// of bytes that it has written.
    fn wait_for(&self, queue: usize, head: u16) -> usize {
        loop {
            let index: u16 = self.get(used_ring(queue) + 2);
            let entry = used_ring(queue) + 4 + 8 * u64::from(index.wrapping_sub(1) % SIZE);
            if index > 0 && self.get::<u32>(entry) == u32::from(head) {
                return self.get::<u32>(entry + 4).try_into().unwrap();
            }
            let mut events = [EpollEvent::default()];
            let limit = LONG.as_millis().try_into().unwrap();
            let ready = self.called[queue].wait(limit, &mut events).unwrap();
            assert_eq!(ready, 1, "the device does not use {head}");
            self.calls[queue].read().unwrap();
        }
    }

    /// Gives the device room for a packet, and waits for one. Returns header and data.
    fn packet(&mut self) -> (Vec<u8>, Vec<u8>) {
        let head = self.available[TO_GUEST] % SIZE;
        let at = buffer(TO_GUEST, head);
        self.describe(TO_GUEST, head, (at, 4096, WRITE, 0));
        self.offer(TO_GUEST, head);
        let mut packet = vec![0; self.wait_for(TO_GUEST, head)];
        let read = self.memory.read_slice(&mut packet, GuestAddress(at));
        read.unwrap();
        let data = packet.split_off(HEADER);
        (packet, data)
    }

    /// Sends a packet, and waits until the device has taken it.
    fn send(&mut self, packet: &[u8]) {
        let head = self.available[OF_GUEST] % SIZE;
        let at = buffer(OF_GUEST, head);
        let written = self.memory.write_slice(packet, GuestAddress(at));
        written.unwrap();
        let length = packet.len().try_into().unwrap();
        self.describe(OF_GUEST, head, (at, length, 0, 0));
        self.offer(OF_GUEST, head);
        assert_eq!(self.wait_for(OF_GUEST, head), 0);
    }

    /// Accepts the connection of a program of the host. Each sends the other a word.
    fn talks_to_a_program(&mut self, daemon: &Daemon) {
        let mut program = program(daemon);
        let request = self.packet().0;
        let ends: [u64; 2] = [0, 8].map(|at| u64::from_le_bytes(field(&request, at)));
        let [host, guest] = [16, 20].map(|at| u32::from_le_bytes(field(&request, at)));
        assert_eq!((ends, guest, operation(&request)), ([2, 3], 5, REQUEST));
        self.send(&answer(&request, RESPONSE, b""));
        let expected = format!("OK {host}\nof the guest");
        self.send(&answer(&request, DATA, b"of the guest"));
        let mut said = vec![0; expected.len()];
        program.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), expected);
        program.write_all(b"of the host").unwrap();
        let (header, data) = self.packet();
        assert_eq!(operation(&header), DATA);
        assert_eq!(data, b"of the host");
    }
}

fn guest_memory() -> GuestMemoryMmap {
    let file: File = tempfile::tempfile().unwrap();
    file.set_len(MEMORY).unwrap();
    let file = Some(FileOffset::new(file, 0));
    let ranges = [(GuestAddress(0), MEMORY.try_into().unwrap(), file)];
    GuestMemoryMmap::from_ranges_with_files(ranges).unwrap()
}

fn field<const LENGTH: usize>(header: &[u8], at: usize) -> [u8; LENGTH] {
    header[at..at + LENGTH].try_into().unwrap()
}

fn operation(header: &[u8]) -> u16 {
    u16::from_le_bytes(field(header, 30))
}

/// Returns a packet of the guest for the connection that `request` requests. Its program has room
/// for 4096 bytes.
fn answer(request: &[u8], operation: u16, data: &[u8]) -> Vec<u8> {
    let swapped = [8..16, 0..8, 20..24, 16..20].map(|part| &request[part]);
    let mut packet = swapped.concat();
    packet.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
    packet.extend([1_u16, operation].map(u16::to_le_bytes).concat());
    packet.extend([0_u32, 4096, 0].map(u32::to_le_bytes).concat());
    packet.extend(data);
    packet
}

#[test]
fn front_end_reads_the_cid_and_its_guest_talks_to_a_program() {
    let daemon = start();
    let mut vm = Vm::start(&daemon);
    let flags = VhostUserConfigFlags::WRITABLE;
    let (_, cid) = vm.frontend.get_config(0, 8, flags, &[0; 8]).unwrap();
    assert_eq!(cid, 3_u64.to_le_bytes());
    vm.talks_to_a_program(&daemon);
}

#[test]
fn hostile_descriptors_neither_end_nor_hang_the_device() {
    let daemon = start();
    let (ours, end) = (buffer(OF_GUEST, 0), MEMORY - 8);
    let unused = (0, 0, 0, 0);
    let chains: [[Descriptor; 2]; 9] = [
        [(ours, 64, NEXT, 0), unused],
        [(ours, 64, NEXT | WRITE, 1), (ours, 64, NEXT | WRITE, 0)],
        [(end, 4096, 0, 0), unused],
        [(end, 4096, WRITE, 0), unused],
        [(ours, u32::MAX, WRITE, 0), unused],
        [(u64::MAX - 8, 64, WRITE, 0), unused],
        [(ours, 64, NEXT, 999), unused],
        [(ours, 0, 0, 0), unused],
        [(table(OF_GUEST), 16, INDIRECT, 0), unused],
    ];
    for chain in chains {
        let mut vm = Vm::start(&daemon);
        // The device looks for room only if it has a packet.
        let _program = program(&daemon);
        for queue in [TO_GUEST, OF_GUEST] {
            for (descriptor, index) in chain.into_iter().zip(0..) {
                vm.describe(queue, index, descriptor);
            }
            vm.offer(queue, 0);
            vm.offer(queue, u16::MAX);
        }
        vm.send(&[0; HEADER]);
        // The device answers a packet without a connection by a reset, after the program's request
        // if that was not lost.
        vm.packet();
    }
    Vm::start(&daemon).talks_to_a_program(&daemon);
}

#[test]
fn more_entries_than_a_ring_has_stop_only_that_front_end() {
    let daemon = start();
    for index in [SIZE + 1, 40_000, u16::MAX] {
        let vm = Vm::start(&daemon);
        let _program = program(&daemon);
        vm.announce(TO_GUEST, index);
        vm.announce(OF_GUEST, index);
    }
    Vm::start(&daemon).talks_to_a_program(&daemon);
    // A guest could fill the host's disk.
    assert_eq!(daemon.stderr(), "");
}

#[test]
fn front_end_that_leaves_at_any_point_makes_way() {
    let daemon = start();
    drop(UnixStream::connect(daemon.socket()).unwrap());
    let mut partial = UnixStream::connect(daemon.socket()).unwrap();
    partial.write_all(&[1, 0, 0, 0, 1]).unwrap();
    drop(partial);
    let mut wrong = UnixStream::connect(daemon.socket()).unwrap();
    wrong.write_all(&[0xff; 64]).unwrap();
    drop(wrong);
    let started = Frontend::connect(daemon.socket(), 3).unwrap();
    started.set_owner().unwrap();
    drop(started);
    let mut vm = Vm::start(&daemon);
    let mut program = program(&daemon);
    assert_eq!(operation(&vm.packet().0), REQUEST);
    drop(vm);
    // Its connections end with it.
    assert_eq!(program.read(&mut [0]).unwrap_or_default(), 0);
    Vm::start(&daemon).talks_to_a_program(&daemon);
}

#[test]
fn front_end_that_takes_its_memory_away_is_left() {
    let daemon = start();
    let vm = Vm::start(&daemon);
    // The answer shows that all earlier requests are executed.
    vm.frontend.get_features().unwrap();
    let region = vm.memory.iter().next().unwrap();
    region.file_offset().unwrap().file().set_len(0).unwrap();
    vm.kicks[OF_GUEST].write(1).unwrap();
    assert_eq!((&vm.stream).read(&mut [0]).unwrap(), 0, "the end");
    Vm::start(&daemon).talks_to_a_program(&daemon);
}

#[test]
fn full_call_eventfd_does_not_block_the_device() {
    let daemon = start();
    let mut vm = Vm::start(&daemon);
    vm.calls[OF_GUEST].write(u64::MAX - 1).unwrap();
    let at = buffer(OF_GUEST, 0);
    vm.describe(OF_GUEST, 0, (at, HEADER as u32, 0, 0));
    vm.offer(OF_GUEST, 0);
    // A packet without a connection, which is refused.
    assert_eq!(vm.packet().0.len(), HEADER);
    drop(vm);
    Vm::start(&daemon).talks_to_a_program(&daemon);
}

#[test]
fn kick_that_is_taken_back_does_not_block_the_device() {
    let daemon = start();
    let mut vm = Vm::start(&daemon);
    let kick = vm.kicks[OF_GUEST].try_clone().unwrap();
    std::thread::spawn(move || while kick.read().is_ok() {});
    for _ in 0..100 {
        for _ in 0..3 {
            vm.kicks[OF_GUEST].write(1).unwrap();
        }
        // Its request, or the end of an earlier one.
        let _program = program(&daemon);
        vm.packet();
    }
    drop(vm);
    Vm::start(&daemon).talks_to_a_program(&daemon);
}

#[test]
fn front_end_that_has_left_leaves_no_descriptor() {
    let daemon = start();
    let mut counts = Vec::new();
    for _ in 0..4 {
        let mut vm = Vm::start(&daemon);
        vm.talks_to_a_program(&daemon);
        counts.push(daemon.open_descriptors());
    }
    assert_eq!(counts, [counts[0]; 4]);
}
