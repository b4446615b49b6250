//! Programs of the host and a guest that the tests play.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::connection::BUFFER;
use crate::header::{NO_MORE_RECEIVED, NO_MORE_SENT};

/// Takes every program for this user's, or for another user's.
#[derive(Debug)]
enum Programs {
    Ours,
    Others,
}

impl PeerCheck for Programs {
    fn check(&self, _: &UnixStream) -> Result<(), PeerError> {
        match self {
            Self::Ours => Ok(()),
            Self::Others => Err(PeerError::OtherUser {
                path: PathBuf::new(),
                pid: 77,
                uid: 1,
                owner: 2,
            }),
        }
    }
}

/// A multiplexer, and the guest behind it.
struct Fixture {
    multiplexer: Multiplexer,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::of(Programs::Ours)
    }

    fn of(programs: Programs) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            multiplexer: Multiplexer::new(listener, Arc::new(programs)).unwrap(),
            path,
            _folder: folder,
        }
    }

    /// Returns a program that requests port 5 of the guest, and the packet that the guest gets.
    fn asked(&mut self) -> (UnixStream, VsockHeader) {
        let mut program = UnixStream::connect(&self.path).unwrap();
        program.write_all(b"CONNECT 5\n").unwrap();
        let request = self.packet().unwrap().0;
        assert_eq!(
            (request.kind, request.ports.guest),
            (PacketKind::Request, 5)
        );
        (program, request)
    }

    /// Returns a program with a connection to a guest that takes `buffer` bytes.
    fn connected(&mut self, buffer: u32) -> (UnixStream, Ports) {
        let (mut program, VsockHeader { ports, .. }) = self.asked();
        self.say(ports, PacketKind::Response, 0, buffer, 0);
        let mut answer = vec![0; format!("OK {}\n", ports.host).len()];
        program.read_exact(&mut answer).unwrap();
        assert_eq!(answer, format!("OK {}\n", ports.host).as_bytes());
        program.set_nonblocking(true).unwrap();
        (program, ports)
    }

    fn say(&mut self, ports: Ports, kind: PacketKind, flags: u32, buffer: u32, forwarded: u32) {
        let header = VsockHeader {
            ports,
            kind,
            flags,
            length: 0,
            buffer,
            forwarded,
        };
        self.multiplexer.receive(&header, &[]);
    }

    fn send(&mut self, ports: Ports, data: &[u8]) {
        let header = VsockHeader {
            ports,
            kind: PacketKind::Data,
            flags: 0,
            length: u32::try_from(data.len()).unwrap(),
            buffer: 1000,
            forwarded: 0,
        };
        self.multiplexer.receive(&header, data);
    }

    /// Returns the next packet for the guest.
    fn packet(&mut self) -> Option<(VsockHeader, Vec<u8>)> {
        let mut space = [0; 256];
        for _ in 0..1000 {
            self.multiplexer.take_events();
            let more = self.multiplexer.has_packet();
            if let Some(header) = self.multiplexer.next_packet(&mut space) {
                let length = usize::try_from(header.length).unwrap();
                return Some((header, space[..length].to_vec()));
            }
            if !more {
                return None;
            }
        }
        panic!("the multiplexer goes on without a packet")
    }
}

#[test]
fn data_goes_both_ways_within_the_credit() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(300);
    program.write_all(&[7; 500]).unwrap();
    let lengths: Vec<usize> = std::iter::from_fn(|| fixture.packet())
        .map(|(_, data)| data.len())
        .collect();
    assert_eq!(lengths, [256, 44]);
    fixture.say(ports, PacketKind::CreditUpdate, 0, 300, 300);
    assert_eq!(fixture.packet().unwrap().1, [7; 200]);
    assert_eq!(fixture.packet(), None);
    fixture.send(ports, b"hello");
    let mut said = [0; 16];
    assert_eq!(program.read(&mut said).unwrap(), 5);
    assert_eq!(&said[..5], b"hello");
}

#[test]
fn guest_beyond_its_credit_loses_the_connection() {
    let mut fixture = Fixture::new();
    let (program, ports) = fixture.connected(1000);
    let chunk = vec![1; 32 << 10];
    // The socket takes some, the device holds its buffer's worth.
    let mut sent = 0;
    while fixture
        .packet()
        .is_none_or(|(header, _)| header.kind != PacketKind::Reset)
    {
        fixture.send(ports, &chunk);
        sent += chunk.len();
        assert!(sent < 16 << 20, "no end");
    }
    assert!(sent > usize::try_from(BUFFER).unwrap());
    drop(program);
}

#[test]
fn slow_program_gets_all_that_a_closed_guest_sent() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(1000);
    let mut sent = 0;
    for _ in 0..7 {
        fixture.send(ports, &vec![1; 32 << 10]);
        sent += 32 << 10;
    }
    let both = NO_MORE_SENT | NO_MORE_RECEIVED;
    fixture.say(ports, PacketKind::Shutdown, both, 1000, 0);
    // The guest need not wait for the program.
    let kinds: Vec<PacketKind> = std::iter::from_fn(|| fixture.packet())
        .map(|(header, _)| header.kind)
        .collect();
    assert_eq!(kinds.last(), Some(&PacketKind::Reset));
    let mut got = 0;
    let mut space = vec![0; 64 << 10];
    loop {
        match program.read(&mut space) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        fixture.multiplexer.take_events();
    }
    assert_eq!(got, sent);
    assert!(fixture.multiplexer.peers.is_empty());
}

#[test]
fn end_of_a_program_reaches_the_guest_after_its_data() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(1000);
    program.write_all(b"last").unwrap();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(fixture.packet().unwrap().1, b"last");
    let end = fixture.packet().unwrap().0;
    assert_eq!((end.kind, end.flags), (PacketKind::Shutdown, NO_MORE_SENT));
    // The other direction is still open.
    fixture.send(ports, b"answer");
    let mut said = [0; 16];
    assert_eq!(program.read(&mut said).unwrap(), 6);
    drop(program);
    fixture.send(ports, b"too late");
    assert_eq!(fixture.packet().unwrap().0.kind, PacketKind::Reset);
    assert!(fixture.multiplexer.peers.is_empty());
}

#[test]
fn program_that_leaves_tells_the_guest_to_close() {
    let mut fixture = Fixture::new();
    let (program, ports) = fixture.connected(1000);
    drop(program);
    let end = fixture.packet().unwrap().0;
    let both = NO_MORE_SENT | NO_MORE_RECEIVED;
    assert_eq!((end.kind, end.flags), (PacketKind::Shutdown, both));
    // This holds with or without an answer of the guest.
    assert!(fixture.multiplexer.peers.is_empty());
    fixture.say(ports, PacketKind::Reset, 0, 0, 0);
    assert_eq!(fixture.packet(), None);
}

#[test]
fn guest_that_receives_no_more_learns_that_a_program_left() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(0);
    program.write_all(b"this is not received").unwrap();
    fixture.say(ports, PacketKind::Shutdown, NO_MORE_RECEIVED, 0, 0);
    assert_eq!(fixture.packet(), None);
    drop(program);
    let end = fixture.packet().unwrap().0;
    assert_eq!((end.kind, end.ports), (PacketKind::Shutdown, ports));
    assert!(fixture.multiplexer.peers.is_empty());
}

#[test]
fn connection_before_the_driver_starts_is_kept() {
    let mut fixture = Fixture::new();
    let mut program = UnixStream::connect(&fixture.path).unwrap();
    program.write_all(b"CONNECT 5\n").unwrap();
    fixture.multiplexer.take_events();
    fixture.multiplexer.reset();
    assert_eq!(fixture.packet().unwrap().0.kind, PacketKind::Request);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let mut fixture = Fixture::new();
    let mut programs: Vec<_> = (0..LIMIT).map(|_| fixture.asked().0).collect();
    let mut late = UnixStream::connect(&fixture.path).unwrap();
    late.write_all(b"CONNECT 5\n").unwrap();
    assert_eq!(fixture.packet(), None);
    assert_eq!(late.read(&mut [0]).unwrap(), 0);
    programs.pop();
    assert_eq!(fixture.packet().unwrap().0.kind, PacketKind::Reset);
    fixture.asked();
}

#[test]
fn program_of_another_user_is_refused() {
    let mut fixture = Fixture::of(Programs::Others);
    let mut program = UnixStream::connect(&fixture.path).unwrap();
    fixture.multiplexer.take_events();
    assert!(fixture.multiplexer.peers.is_empty());
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
}

#[test]
fn refused_request_closes_the_programs_socket() {
    let mut fixture = Fixture::new();
    let (mut program, request) = fixture.asked();
    fixture.say(request.ports, PacketKind::Reset, 0, 0, 0);
    assert_eq!(program.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn packets_of_no_connection_are_refused_with_a_limit() {
    let mut fixture = Fixture::new();
    for host in 0..10_000 {
        let ports = Ports { guest: 1, host };
        fixture.say(ports, PacketKind::Request, 0, 0, 0);
        fixture.say(ports, PacketKind::Reset, 0, 0, 0);
    }
    let refused: Vec<_> = std::iter::from_fn(|| fixture.packet()).collect();
    assert_eq!(refused.len(), RESETS);
    assert!(
        refused
            .iter()
            .all(|(header, _)| header.kind == PacketKind::Reset)
    );
}

#[test]
fn silent_programs_give_way_to_others() {
    let mut fixture = Fixture::new();
    let mut silent = Vec::new();
    for _ in 0..LIMIT + 1 {
        silent.push(UnixStream::connect(&fixture.path).unwrap());
        fixture.multiplexer.take_events();
    }
    assert_eq!(fixture.multiplexer.peers.len(), LIMIT);
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    let (_program, _ports) = fixture.connected(1000);
}

#[test]
fn new_driver_ends_the_connections_of_the_former() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(1000);
    fixture.multiplexer.reset();
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
    fixture.send(ports, b"x");
    assert_eq!(fixture.packet().unwrap().0.kind, PacketKind::Reset);
}

#[test]
fn connection_whose_guest_sends_no_more_is_at_rest() {
    let mut fixture = Fixture::new();
    let (mut program, ports) = fixture.connected(1000);
    fixture.say(ports, PacketKind::Shutdown, NO_MORE_SENT, 1000, 0);
    assert_eq!(fixture.packet(), None);
    assert_eq!(program.read(&mut [0; 16]).unwrap(), 0, "the end");
    program.write_all(b"more").unwrap();
    assert_eq!(fixture.packet().unwrap().1, b"more");
    assert_eq!(fixture.packet(), None);
}

/// A step of programs and a hostile guest.
#[derive(Clone, Debug)]
enum Step {
    /// A program asks for a port of the guest.
    Connect,
    /// The program with this number, modulo their number, sends this number of bytes.
    Write(usize, u16),
    /// It takes the available data.
    Read(usize),
    Leave(usize),
    /// A packet for the connection of a program, or for other ports.
    Packet(Result<usize, Ports>, VsockHeader, u16),
    /// The guest takes at most this number of packets.
    Take(u8),
}

fn packet() -> impl Strategy<Value = Step> {
    let kinds = [
        PacketKind::Request,
        PacketKind::Response,
        PacketKind::Response,
        PacketKind::Reset,
        PacketKind::Shutdown,
        PacketKind::Data,
        PacketKind::Data,
        PacketKind::Data,
        PacketKind::CreditUpdate,
        PacketKind::CreditRequest,
    ];
    let ports = prop_oneof![
        8 => (0_usize..8).prop_map(Ok),
        1 => (4_u32..7, 1020_u32..1040).prop_map(|(guest, host)| Err(Ports { guest, host })),
    ];
    let number = || prop_oneof![Just(0), Just(1), Just(1000), Just(u32::MAX), any::<u32>()];
    let counts = (0_u32..5, number(), number(), number());
    (
        ports,
        prop::sample::select(kinds.to_vec()),
        counts,
        0_u16..3000,
    )
        .prop_map(|(ports, kind, (flags, length, buffer, forwarded), bytes)| {
            let header = VsockHeader {
                ports: Ports { guest: 0, host: 0 },
                kind,
                flags,
                length,
                buffer,
                forwarded,
            };
            Step::Packet(ports, header, bytes)
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Connect),
        2 => (0_usize..8, 0_u16..3000).prop_map(|(program, bytes)| Step::Write(program, bytes)),
        2 => (0_usize..8).prop_map(Step::Read),
        1 => (0_usize..8).prop_map(Step::Leave),
        8 => packet(),
        3 => any::<u8>().prop_map(Step::Take),
    ]
}

/// A program, the data that the guest has sent to it, and the data that has arrived.
struct Program {
    stream: UnixStream,
    ports: Ports,
    sent: Vec<u8>,
    arrived: Vec<u8>,
}

impl Program {
    fn read(&mut self) {
        let mut space = [0; 4096];
        while let Ok(count @ 1..) = self.stream.read(&mut space) {
            self.arrived.extend(&space[..count]);
        }
    }

    /// Checks that the answer to its request arrives, then the data that the guest has sent first.
    fn check(&self) {
        let answer = format!("OK {}\n", self.ports.host).into_bytes();
        let right = [answer, self.sent.clone()].concat();
        assert!(right.starts_with(&self.arrived), "{:?}", self.ports);
    }
}

impl Fixture {
    /// Takes a step of a guest that follows no rule.
    fn take(&mut self, step: Step, programs: &mut Vec<Program>) {
        let of = |number: usize, programs: &[Program]| number.checked_rem(programs.len());
        match step {
            Step::Connect => {
                let mut stream = UnixStream::connect(&self.path).unwrap();
                stream.set_nonblocking(true).unwrap();
                stream.write_all(b"CONNECT 5\n").unwrap();
                while let Some((request, _)) = self.packet() {
                    if request.kind == PacketKind::Request {
                        programs.push(Program {
                            stream,
                            ports: request.ports,
                            sent: Vec::new(),
                            arrived: Vec::new(),
                        });
                        return;
                    }
                }
            }
            Step::Write(number, bytes) => {
                if let Some(index) = of(number, programs) {
                    // It fails once the connection is over, or full.
                    let _ = programs[index].stream.write(&vec![3; bytes.into()]);
                }
            }
            Step::Read(number) => {
                if let Some(index) = of(number, programs) {
                    programs[index].read();
                    programs[index].check();
                }
            }
            Step::Leave(number) => {
                if let Some(index) = of(number, programs) {
                    programs.swap_remove(index);
                }
            }
            Step::Packet(to, header, bytes) => {
                let index = to.ok().and_then(|number| of(number, programs));
                let ports = match (index, to) {
                    (Some(index), _) => programs[index].ports,
                    (None, Err(ports)) => ports,
                    (None, Ok(_)) => return,
                };
                let mut data = Vec::new();
                if let (PacketKind::Data, Some(index)) = (header.kind, index) {
                    let sent = &mut programs[index].sent;
                    data = (sent.len()..sent.len() + usize::from(bytes))
                        .map(|at| at.to_le_bytes()[0])
                        .collect();
                    sent.extend(&data);
                }
                self.multiplexer
                    .receive(&VsockHeader { ports, ..header }, &data);
            }
            Step::Take(count) => {
                for _ in 0..count {
                    let Some(_) = self.packet() else { break };
                }
            }
        }
        assert!(self.multiplexer.peers.len() <= LIMIT && self.multiplexer.resets.len() <= RESETS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn programs_are_served_whatever_the_guest_has_said(steps in prop::collection::vec(step(), 1..60)) {
        let mut fixture = Fixture::new();
        let mut programs = Vec::new();
        for step in steps {
            fixture.take(step, &mut programs);
        }
        for mut program in programs {
            program.read();
            program.check();
        }
        while fixture.packet().is_some() {}
        let (mut program, ports) = fixture.connected(1000);
        fixture.send(ports, b"hello");
        let mut said = [0; 16];
        prop_assert_eq!(program.read(&mut said).unwrap(), 5);
        program.write_all(b"world").unwrap();
        let packets = std::iter::from_fn(|| fixture.packet());
        let data: Vec<u8> = packets.flat_map(|(_, data)| data).collect();
        prop_assert_eq!(data, b"world");
    }
}
