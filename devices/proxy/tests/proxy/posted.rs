//! A server that asks for DMA before it answers an access. QEMU executes such a request only after
//! its access is answered.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use peerbar_rig::wire::{self, Message, Outcome, REPLY, command, message};
use peerbar_rig::{Daemon, RawClient, RawServer};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;

use crate::proxy;

/// The command register with bus mastering.
const MASTER: [u8; 2] = [0b100, 0];

/// An address whose mapping the server answers only after its DMA.
const LATE: u64 = 0xa000_0000;

/// A proxy of a server that asks for DMA before it answers accesses of region 0, and messages about
/// the mapping at [`LATE`].
struct Rig {
    _folder: TempDir,
    daemon: Daemon,
    client: RawClient,
    /// `true` for each request of the server that was refused.
    answers: Receiver<bool>,
    server: JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let listener = UnixListener::bind(&path).unwrap();
        let (answered, answers) = channel();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            RawServer::new(stream).serve(|server, asked| {
                let is_meant = match asked.command {
                    command::REGION_READ | command::REGION_WRITE => asked.payload[8..12] == [0; 4],
                    command::DMA_MAP => asked.payload[16..24] == LATE.to_le_bytes(),
                    command::DMA_UNMAP => asked.payload[8..16] == LATE.to_le_bytes(),
                    _ => false,
                };
                if is_meant {
                    let written = wire::quads(&[0x9000_0000, 8, 5]);
                    server.send(&message(1, command::DMA_WRITE, 0, &written), &[]);
                    let answer = server.receive();
                    assert!(!answer.is_command());
                    answered.send(answer.flags != REPLY).unwrap();
                }
                false
            });
        });
        let daemon = proxy(&path).start();
        let mut client = RawClient::new(UnixStream::connect(daemon.socket()).unwrap());
        client.agree();
        let mapped = wire::dma_map(3, 0, 0x9000_0000, 0x1000);
        client.ask(command::DMA_MAP, &mapped).ok();
        let access = wire::region_access(wire::CONFIG, 4, 2);
        client
            .ask(command::REGION_WRITE, &[access, MASTER.to_vec()].concat())
            .ok();
        Self {
            _folder: folder,
            daemon,
            client,
            answers,
            server,
        }
    }

    fn end(self) {
        drop((self.client, self.daemon));
        self.server.join().unwrap();
    }
}

/// Sends a message before whose answer the server asks for DMA, and executes both.
#[track_caller]
fn is_answered_before_the_server(rig: &mut Rig, command: u16, payload: &[u8]) {
    rig.client.send(&message(7, command, 0, payload));
    let both = [rig.client.receive(), rig.client.receive()];
    let find = |command| both.iter().find(|message| message.command == command);
    assert_eq!(find(command).unwrap().flags, REPLY);
    let request = find(command::DMA_WRITE).expect("a request");
    assert_eq!(request.payload, wire::quads(&[0x9000_0000, 8, 5]));
    let done = message(request.id, request.command, REPLY, &[]);
    rig.client.send(&done);
    assert!(!rig.answers.recv().unwrap(), "refused");
}

#[test]
fn mapping_without_memory_comes_and_goes_without_the_answer_to_a_request() {
    let mut rig = Rig::new();
    let mapped = wire::dma_map(3, 0, LATE, 0x1000);
    is_answered_before_the_server(&mut rig, command::DMA_MAP, &mapped);
    let unmapped = wire::dma_unmap(0, LATE, 0x1000);
    is_answered_before_the_server(&mut rig, command::DMA_UNMAP, &unmapped);
    rig.end();
}

#[test]
fn request_that_the_end_of_a_mapping_with_memory_waits_for_fails() {
    let mut rig = Rig::new();
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 0x1000).unwrap();
    let mapped = wire::dma_map(3, 0, LATE, 0x1000);
    let id = 7;
    rig.client.send_with(
        &message(id, command::DMA_MAP, 0, &mapped),
        &[memory.as_fd()],
    );
    let both = [rig.client.receive(), rig.client.receive()];
    let request = both.iter().find(|message| message.is_command()).unwrap();
    rig.client
        .send(&message(request.id, request.command, REPLY, &[]));
    assert!(!rig.answers.recv().unwrap(), "refused");
    let unmapped = rig
        .client
        .ask(command::DMA_UNMAP, &wire::dma_unmap(0, LATE, 0x1000));
    unmapped.ok();
    assert!(rig.answers.recv().unwrap(), "executed");
    rig.end();
}

#[test]
fn request_that_a_joined_mapping_waits_for_fails() {
    let mut rig = Rig::new();
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 0x2000).unwrap();
    let map = |client: &mut RawClient, id, offset| {
        let mapped = wire::dma_map(3, offset, LATE + offset, 0x1000);
        let mapped = message(id, command::DMA_MAP, 0, &mapped);
        client.send_with(&mapped, &[memory.as_fd()]);
    };
    let execute = |client: &mut RawClient, both: &[Message; 2]| {
        let request = both.iter().find(|message| message.is_command()).unwrap();
        client.send(&message(request.id, request.command, REPLY, &[]));
    };
    map(&mut rig.client, 7, 0);
    let both = [rig.client.receive(), rig.client.receive()];
    execute(&mut rig.client, &both);
    assert!(!rig.answers.recv().unwrap(), "refused");
    // The first mapping is taken back, and both are lent as one.
    map(&mut rig.client, 8, 0x1000);
    assert!(rig.answers.recv().unwrap(), "executed");
    let both = [rig.client.receive(), rig.client.receive()];
    execute(&mut rig.client, &both);
    assert!(!rig.answers.recv().unwrap(), "refused");
    rig.end();
}

#[test]
fn write_is_answered_without_the_answer_to_a_request() {
    let mut rig = Rig::new();
    let access = wire::region_access(0, 0, 4);
    let write = [access, vec![1; 4]].concat();
    is_answered_before_the_server(&mut rig, command::REGION_WRITE, &write);
    // The next access comes after the server's answer to the first.
    let config = wire::region_access(wire::CONFIG, 0, 4);
    rig.client.ask(command::REGION_READ, &config).ok();
    rig.end();
}

#[test]
fn request_that_a_read_waits_for_fails() {
    let mut rig = Rig::new();
    let read = rig
        .client
        .ask(command::REGION_READ, &wire::region_access(0, 0, 4));
    assert_eq!(read.ok()[16..], [0x5a; 4]);
    assert!(rig.answers.recv().unwrap(), "refused");
    assert!(!rig.client.is_readable(), "no request came");
    rig.end();
}
