//! The relay between two ends of this process.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};

use peerbar_host::socket_file::descriptors;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::direction::Direction;
use super::*;
use crate::stop::Stop;
use crate::test_message::message;
use crate::wire::{HEADER_SIZE, flags};

/// Longest wait of any test.
const TIME_OUT: Duration = Duration::from_secs(20);
/// Bytes of a payload that the observer gets.
const KEPT: usize = 64;

/// A message or a notice.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message {
        from: Side,
        id: u16,
        payload: Vec<u8>,
        length: usize,
        descriptors: Vec<String>,
    },
    Notice(Side, Notice),
    Idle,
}

/// Sends everything that the observer sees to the test.
struct Reporter(Sender<Seen>);

impl Observer for Reporter {
    fn message(&mut self, from: Side, message: &PassedMessage<'_>) {
        let descriptors = message.descriptors.iter();
        let seen = Seen::Message {
            from,
            id: message.header.id.get(),
            payload: message.payload.to_vec(),
            length: message.length,
            descriptors: descriptors.map(|each| each.file.clone()).collect(),
        };
        self.0.send(seen).unwrap();
    }

    fn notice(&mut self, from: Side, _: u64, notice: Notice) {
        self.0.send(Seen::Notice(from, notice)).unwrap();
    }

    fn idle(&mut self) {
        self.0.send(Seen::Idle).unwrap();
    }
}

/// A relay in a thread, and the far ends of its two connections.
struct Rig {
    client: UnixStream,
    server: UnixStream,
    stop: Stop,
    seen: Receiver<Seen>,
    relay: JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        Self::keeping(KEPT)
    }

    /// Returns a rig whose observer gets so many bytes of a payload.
    fn keeping(kept: usize) -> Self {
        let (client, near_client) = UnixStream::pair().unwrap();
        let (server, near_server) = UnixStream::pair().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(TIME_OUT)).unwrap();
            end.set_write_timeout(Some(TIME_OUT)).unwrap();
        }
        let stop = Stop::new().unwrap();
        let (sender, seen) = channel();
        let stopped = stop.clone();
        let relay = spawn(move || {
            let relay = Relay::new(near_client, near_server, kept);
            relay
                .run(stopped.as_fd(), None, &mut Reporter(sender))
                .unwrap();
        });
        Self {
            client,
            server,
            stop,
            seen,
            relay,
        }
    }

    /// Returns the next thing that the observer sees, except that nothing happens.
    fn next(&self) -> Seen {
        loop {
            match self.seen.recv_timeout(TIME_OUT).unwrap() {
                Seen::Idle => {}
                seen => return seen,
            }
        }
    }
}

fn seen(from: Side, id: u16, payload: &[u8], descriptors: &[&str]) -> Seen {
    Seen::Message {
        from,
        id,
        payload: payload.get(..KEPT).unwrap_or(payload).to_vec(),
        length: payload.len(),
        descriptors: descriptors.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn memory(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).unwrap()
}

/// Sends bytes that fit into the socket, with descriptors.
fn send_with(stream: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let sent = descriptors::send(stream, &[IoSlice::new(bytes)], &fds).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Receives some bytes, at least one, and their descriptors.
fn receive_some(stream: &UnixStream, space: &mut [u8]) -> descriptors::Received {
    let until = Some(Instant::now() + TIME_OUT);
    loop {
        match descriptors::receive_all(stream, space) {
            Err(Errno::AGAIN) => {
                descriptors::wait_until(stream, PollFlags::IN, until).unwrap();
            }
            received => return received.unwrap(),
        }
    }
}

/// Receives a message as QEMU does: the descriptors come with its header.
fn receive(mut stream: &UnixStream) -> (Header, Vec<u8>, Vec<OwnedFd>) {
    let mut header = Header::new_zeroed();
    let (mut filled, mut fds) = (0, Vec::new());
    while filled < HEADER_SIZE {
        let received = receive_some(stream, &mut header.as_mut_bytes()[filled..]);
        assert!(received.bytes > 0, "the relay has hung up");
        filled += received.bytes;
        fds.extend(received.descriptors);
    }
    let mut payload = vec![0; header.size.get() as usize - HEADER_SIZE];
    stream.read_exact(&mut payload).unwrap();
    (header, payload, fds)
}

fn names(fds: &[OwnedFd]) -> Vec<String> {
    let infos = fds.iter().map(DescriptorInfo::of);
    infos.map(|info| info.file).collect()
}

#[test]
fn messages_and_descriptors_pass_in_both_directions() {
    let rig = Rig::new();
    let (ram, bar) = (memory("ram"), memory("bar"));
    send_with(&rig.client, &message(1, 0, &[1; 32]), &[&ram]);
    let (header, payload, fds) = receive(&rig.server);
    assert_eq!((header.id.get(), payload), (1, vec![1; 32]));
    assert_eq!(names(&fds), ["memfd:ram"]);
    send_with(
        &rig.server,
        &message(1, flags::REPLY, &[2; 8]),
        &[&bar, &ram],
    );
    let (header, payload, fds) = receive(&rig.client);
    assert!(header.is_reply());
    assert_eq!(payload, [2; 8]);
    assert_eq!(names(&fds), ["memfd:bar", "memfd:ram"]);
    let expected = seen(Side::Client, 1, &[1; 32], &["memfd:ram"]);
    assert_eq!(rig.next(), expected);
    let expected = seen(Side::Server, 1, &[2; 8], &["memfd:bar", "memfd:ram"]);
    assert_eq!(rig.next(), expected);
}

/// One reception could bring the bytes of several messages, and the descriptors of one.
#[test]
fn descriptors_stay_with_the_message_that_they_came_with() {
    let rig = Rig::new();
    let first = memory("first");
    let third = memory("third");
    send_with(&rig.client, &message(1, 0, &[0; 4]), &[&first]);
    send_with(&rig.client, &message(2, 0, &[0; 4]), &[]);
    send_with(&rig.client, &message(3, 0, &[0; 4]), &[&third, &third]);
    send_with(&rig.client, &message(4, 0, &[]), &[]);
    let received: Vec<_> = (0..4)
        .map(|_| receive(&rig.server))
        .map(|(header, _, fds)| (header.id.get(), names(&fds)))
        .collect();
    let third = || vec!["memfd:third".to_owned(); 2];
    let first = vec!["memfd:first".to_owned()];
    let expected = [(1, first), (2, vec![]), (3, third()), (4, vec![])];
    assert_eq!(received, expected);
}

#[test]
fn most_descriptors_of_a_message_pass() {
    let rig = Rig::new();
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    send_with(&rig.client, &message(1, 0, &[]), &[&null; 253]);
    assert_eq!(receive(&rig.server).2.len(), 253);
}

#[test]
fn incomplete_message_is_passed_on_as_far_as_it_is_there() {
    let mut rig = Rig::new();
    let whole = message(5, 0, &[7; 20]);
    for (from, to) in [(0, 10), (10, 16), (16, 30), (30, 36)] {
        rig.client.write_all(&whole[from..to]).unwrap();
        let mut part = vec![0; to - from];
        rig.server.read_exact(&mut part).unwrap();
        assert_eq!(part, whole[from..to]);
    }
    assert_eq!(rig.next(), seen(Side::Client, 5, &[7; 20], &[]));
}

#[test]
fn requests_of_both_sides_may_be_in_flight_at_once() {
    let mut rig = Rig::new();
    for id in [1, 2] {
        rig.client.write_all(&message(id, 0, &[1; 16])).unwrap();
        receive(&rig.server);
        rig.server.write_all(&message(id, 0, &[2; 16])).unwrap();
        receive(&rig.client);
    }
    for id in [2, 1] {
        rig.client
            .write_all(&message(id, flags::REPLY, &[]))
            .unwrap();
        receive(&rig.server);
        rig.server
            .write_all(&message(id, flags::REPLY, &[]))
            .unwrap();
        receive(&rig.client);
    }
    for (id, payload) in [(1, 16), (2, 16), (2, 0), (1, 0)] {
        let expected = seen(Side::Client, id, &vec![1; payload], &[]);
        assert_eq!(rig.next(), expected);
        let expected = seen(Side::Server, id, &vec![2; payload], &[]);
        assert_eq!(rig.next(), expected);
    }
}

#[test]
fn stream_without_framing_is_passed_on_as_bytes() {
    let mut rig = Rig::new();
    rig.client.write_all(&message(1, 0, &[])).unwrap();
    let mut garbage = message(2, 0, &[]);
    garbage[4..8].copy_from_slice(&15_u32.to_le_bytes());
    garbage.extend((0..200_000_u32).map(|at| at.to_le_bytes()[0]));
    let mut client = rig.client.try_clone().unwrap();
    let sent = garbage.clone();
    let writer = spawn(move || client.write_all(&sent).unwrap());
    receive(&rig.server);
    let mut received = vec![0; garbage.len()];
    rig.server.read_exact(&mut received).unwrap();
    assert!(received == garbage);
    writer.join().unwrap();
    assert_eq!(rig.next(), seen(Side::Client, 1, &[], &[]));
    let expected = Seen::Notice(Side::Client, Notice::Unframed(15));
    assert_eq!(rig.next(), expected);
    // The other direction still has its messages.
    rig.server.write_all(&message(9, 0, &[3])).unwrap();
    assert_eq!(rig.next(), seen(Side::Server, 9, &[3], &[]));
}

#[test]
fn side_that_does_not_read_stops_the_other() {
    let (mut client, near_client) = UnixStream::pair().unwrap();
    let (mut server, near_server) = UnixStream::pair().unwrap();
    for end in [&client, &server] {
        end.set_nonblocking(true).unwrap();
    }
    let (sender, _seen) = channel();
    let mut reporter = Reporter(sender);
    let mut up = Direction::new(Side::Client, KEPT);
    let mut pass = || {
        for _ in 0..100 {
            up.pass(&near_client, &near_server, &mut reporter);
        }
        !up.writes().is_empty()
    };
    let chunk = message(1, flags::NO_REPLY, &[1; 8176]);
    let (mut sent, mut before) = (0, None);
    while before != Some(sent) {
        before = Some(sent);
        while let Ok(count) = client.write(&chunk[sent % chunk.len()..]) {
            sent += count;
        }
        let waits = pass();
        assert!(sent < 4 << 20, "the relay takes everything");
        assert!(waits || before != Some(sent), "the relay loses something");
    }
    let mut received: Vec<u8> = Vec::new();
    while received.len() < sent {
        let mut space = [0; 4096];
        while let Ok(count @ 1..) = server.read(&mut space) {
            received.extend(&space[..count]);
        }
        pass();
    }
    let expected: Vec<u8> = chunk.iter().copied().cycle().take(sent).collect();
    assert!(received == expected);
}

#[test]
fn end_of_the_client_reaches_the_server() {
    let mut rig = Rig::new();
    rig.client.write_all(&message(1, 0, &[0; 8])[..20]).unwrap();
    drop(rig.client);
    let mut rest = Vec::new();
    rig.server.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 20);
    drop(rig.server);
    rig.relay.join().unwrap();
    let notices: Vec<Seen> = rig.seen.iter().filter(|seen| *seen != Seen::Idle).collect();
    let cut = Seen::Notice(Side::Client, Notice::CutShort(4));
    assert_eq!(
        notices[..2],
        [cut, Seen::Notice(Side::Client, Notice::Closed)]
    );
}

#[test]
fn half_close_passes_and_the_other_direction_stays() {
    let mut rig = Rig::new();
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rig.server.read(&mut [0]).unwrap(), 0);
    rig.server.write_all(&message(3, 0, &[5])).unwrap();
    assert_eq!(receive(&rig.client).1, [5]);
    drop(rig.server);
    assert_eq!(rig.client.read(&mut [0]).unwrap(), 0);
    rig.relay.join().unwrap();
}

/// QEMU waits for the answer with the guest stopped.
#[test]
fn every_request_that_a_server_no_longer_takes_is_answered() {
    let mut rig = Rig::new();
    rig.server.shutdown(Shutdown::Read).unwrap();
    let mut ids = Vec::new();
    // The relay notices with the first one that the server takes no more.
    for id in 1..4 {
        if rig.client.write_all(&message(id, 0, &[1; 16])).is_ok() {
            ids.push(id);
        }
    }
    assert!(!ids.is_empty());
    rig.server.write_all(&message(9, 0, &[5])).unwrap();
    drop(rig.server);
    assert_eq!(receive(&rig.client).0.id.get(), 9);
    let mut answers = Vec::new();
    rig.client.read_to_end(&mut answers).unwrap();
    let answers: Vec<u16> = answers
        .chunks(HEADER_SIZE)
        .map(|bytes| {
            let answer = Header::read_from_bytes(bytes).unwrap();
            assert!(answer.is_reply() && answer.is_error());
            assert_eq!(answer.error.get(), 19);
            answer.id.get()
        })
        .collect();
    assert_eq!(answers, ids);
    rig.relay.join().unwrap();
}

#[test]
fn stop_ends_both_connections_and_answers_the_client() {
    let mut rig = Rig::new();
    rig.client.write_all(&message(1, 0, &[1; 16])).unwrap();
    receive(&rig.server);
    rig.stop.trigger();
    // The server answers what it has, as it does when its client leaves.
    assert_eq!(rig.server.read(&mut [0]).unwrap(), 0);
    rig.server
        .write_all(&message(1, flags::REPLY, &[]))
        .unwrap();
    drop(rig.server);
    assert_eq!(receive(&rig.client).0.id.get(), 1);
    assert_eq!(rig.client.read(&mut [0]).unwrap(), 0);
    rig.relay.join().unwrap();
}

#[test]
fn stop_ends_a_relay_whose_server_hangs() {
    let rig = Rig::new();
    rig.stop.trigger();
    rig.relay.join().unwrap();
    assert_eq!((&rig.client).read(&mut [0]).unwrap(), 0);
}

#[test]
fn observer_is_told_once_that_nothing_happens() {
    let mut rig = Rig::new();
    for id in 1..3 {
        rig.client.write_all(&message(id, 0, &[])).unwrap();
        let next = || rig.seen.recv_timeout(TIME_OUT).unwrap();
        let expected = seen(Side::Client, id, &[], &[]);
        while next() != expected {}
        assert_eq!(next(), Seen::Idle);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    /// Bytes and descriptors arrive as they were sent, with any cuts between the writes.
    #[test]
    fn any_messages_arrive_as_they_were_sent(
        messages in prop::collection::vec((0_usize..3000, 0_usize..4, 1_usize..4000), 1..20),
    ) {
        let rig = Rig::new();
        let null = OwnedFd::from(File::open("/dev/null").unwrap());
        let (client, expected) = (rig.client.try_clone().unwrap(), messages.clone());
        let sender = spawn(move || {
            for (id, (length, count, cut)) in (0..).zip(messages) {
                let bytes = message(id, 0, &vec![id.to_le_bytes()[0]; length]);
                let (first, second) = bytes.split_at(cut.min(bytes.len()));
                client.set_nonblocking(false).unwrap();
                let fds = vec![null.as_fd(); count];
                let until = Instant::now() + TIME_OUT;
                let mut sent = descriptors::send(&client, &[IoSlice::new(first)], &fds);
                while sent == Err(Errno::AGAIN) {
                    descriptors::wait_until(&client, PollFlags::OUT, Some(until)).unwrap();
                    sent = descriptors::send(&client, &[IoSlice::new(first)], &fds);
                }
                let sent = sent.unwrap();
                (&client).write_all(&first[sent..]).unwrap();
                (&client).write_all(second).unwrap();
            }
        });
        for (id, (length, count, _)) in (0_u16..).zip(&expected) {
            let (header, payload, fds) = receive(&rig.server);
            prop_assert_eq!(header.id.get(), id);
            prop_assert_eq!(payload, vec![id.to_le_bytes()[0]; *length]);
            prop_assert_eq!(fds.len(), *count);
            let files = vec!["/dev/null"; *count];
            let payload = vec![id.to_le_bytes()[0]; *length];
            prop_assert_eq!(rig.next(), seen(Side::Client, id, &payload, &files));
        }
        sender.join().unwrap();
    }
}

/// Returns the reply to VERSION that offers a second socket.
fn twin_reply() -> Vec<u8> {
    let json = br#"{"capabilities":{"twin_socket":{"supported":true,"fd_index":1}}}"#;
    let mut reply = message(1, flags::REPLY, &[&[0; 4], &json[..], b"\0"].concat());
    reply.splice(2..4, 1_u16.to_le_bytes());
    reply
}

#[test]
fn second_socket_is_relayed_and_shown() {
    let rig = Rig::keeping(4096);
    let (theirs, server) = UnixStream::pair().unwrap();
    send_with(
        &rig.server,
        &twin_reply(),
        &[&memory("other"), &theirs.into()],
    );
    let mut space = [0; 4096];
    let mut received = receive_some(&rig.client, &mut space);
    assert_eq!(space.get(..received.bytes), Some(&twin_reply()[..]));
    let client = UnixStream::from(received.descriptors.pop().unwrap());
    assert!(matches!(rig.next(), Seen::Message { id: 1, .. }));
    assert_eq!(rig.next(), Seen::Notice(Side::Server, Notice::TwinSocket));
    let (command, reply) = (message(2, 0, &[7; 16]), message(2, flags::REPLY, &[8; 20]));
    for (from, to, bytes, side, payload) in [
        (&server, &client, command, Side::Server, vec![7; 16]),
        (&client, &server, reply, Side::Client, vec![8; 20]),
    ] {
        send_with(from, &bytes, &[]);
        let received = receive_some(to, &mut space);
        assert_eq!(space.get(..received.bytes), Some(&bytes[..]));
        assert_eq!(rig.next(), seen(side, 2, &payload, &[]));
    }
    drop((rig.client, rig.server));
    rig.relay.join().unwrap();
    // The second socket ends with the first one, without a word of its own.
    assert_eq!((&server).read(&mut space).unwrap(), 0);
    let rest: Vec<Seen> = rig.seen.iter().filter(|seen| *seen != Seen::Idle).collect();
    let is_end = |seen: &Seen| matches!(seen, Seen::Notice(_, Notice::Closed));
    assert!(rest.len() <= 2 && rest.iter().all(is_end), "{rest:?}");
}

#[test]
fn second_socket_that_comes_apart_from_its_reply_is_reported() {
    let rig = Rig::keeping(4096);
    let (theirs, _server) = UnixStream::pair().unwrap();
    let reply = twin_reply();
    let (start, rest) = reply.split_at(20);
    send_with(&rig.server, start, &[&memory("other"), &theirs.into()]);
    let mut space = [0; 4096];
    assert_eq!(receive_some(&rig.client, &mut space).descriptors.len(), 2);
    send_with(&rig.server, rest, &[]);
    assert!(matches!(rig.next(), Seen::Message { id: 1, .. }));
    let notice = Notice::TwinSocketUnseen;
    assert_eq!(rig.next(), Seen::Notice(Side::Server, notice));
}
