//! Requests to the client.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use peerbar_pci::Iova;
use peerbar_rig::RawClient;
use peerbar_rig::wire::*;
use peerbar_vfio_user::{self as asked, Client, Data, RequestError};
use proptest::prelude::*;
use rustix::io::Errno;

use crate::board::{Rig, pattern};

const READ: u16 = 11;
const WRITE: u16 = 12;
const PROTO: RequestError = RequestError::Refused(Errno::PROTO);

/// A request from the client's side.
struct Request {
    id: u16,
    command: u16,
    address: u64,
    count: u64,
    data: Vec<u8>,
}

fn request(raw: &mut RawClient) -> Request {
    let wire = raw.receive();
    assert_eq!((wire.flags, wire.error), (0, 0));
    Request {
        id: wire.id,
        command: wire.command,
        address: number(&wire.payload[..8]),
        count: number(&wire.payload[8..16]),
        data: wire.payload[16..].to_vec(),
    }
}

impl Request {
    /// Returns the reply to a read of memory that holds [`pattern`] everywhere.
    fn with_data(&self) -> Vec<u8> {
        let data = (self.address..).take(self.count as usize).map(pattern);
        let access = quads(&[self.address, self.count]);
        let payload = access.into_iter().chain(data).collect::<Vec<u8>>();
        message(self.id, READ, REPLY, &payload)
    }

    fn with_error(&self, errno: u32) -> Vec<u8> {
        let mut reply = message(self.id, self.command, REPLY | ERROR, &[]);
        reply[12..16].copy_from_slice(&errno.to_le_bytes());
        reply
    }
}

fn agreed() -> (Rig, Client) {
    let rig = Rig::agreed();
    let client = rig.clients.recv().unwrap();
    (rig, client)
}

fn dma_read(client: &Client, address: u64, data: &mut [u8]) -> Result<(), RequestError> {
    one(
        client,
        asked::DmaRequest::new(Iova(address), Data::Read(data)),
    )
}

fn dma_write(client: &Client, address: u64, data: &[u8]) -> Result<(), RequestError> {
    one(
        client,
        asked::DmaRequest::new(Iova(address), Data::Write(data)),
    )
}

fn one(client: &Client, request: asked::DmaRequest<'_>) -> Result<(), RequestError> {
    let mut requests = [request];
    client.carry_out(&mut requests, &|| true);
    requests[0].outcome.unwrap()
}

/// Reads in a separate thread, which returns the data, or the error.
fn read_apart(
    client: &Client,
    address: u64,
    length: usize,
) -> thread::JoinHandle<Result<Vec<u8>, RequestError>> {
    let client = client.clone();
    thread::spawn(move || {
        let mut data = vec![0; length];
        dma_read(&client, address, &mut data).map(|()| data)
    })
}

fn write_apart(
    client: &Client,
    address: u64,
    data: Vec<u8>,
) -> thread::JoinHandle<Result<(), RequestError>> {
    let client = client.clone();
    thread::spawn(move || dma_write(&client, address, &data))
}

fn expected(address: u64, length: usize) -> Vec<u8> {
    (address..).take(length).map(pattern).collect()
}

#[test]
fn a_read_is_cut_into_chunks_of_32_kib() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0x1234, 100_000);
    for (address, count) in [
        (0x1234, 32768),
        (0x9234, 32768),
        (0x11234, 32768),
        (0x19234, 1696),
    ] {
        let request = request(&mut rig.raw);
        assert_eq!(request.command, READ);
        assert_eq!((request.address, request.count), (address, count));
        assert!(request.data.is_empty());
        rig.raw.send(&request.with_data());
    }
    assert_eq!(read.join().unwrap().unwrap(), expected(0x1234, 100_000));
}

#[test]
fn sixteen_chunks_are_under_way_before_the_first_reply() {
    let (mut rig, client) = agreed();
    let length = 40 * 32768 + 1;
    let read = read_apart(&client, 0, length);
    let mut waiting: Vec<Request> = (0..16).map(|_| request(&mut rig.raw)).collect();
    for _ in 0..25 {
        rig.raw.send(&waiting.pop().unwrap().with_data());
        waiting.push(request(&mut rig.raw));
    }
    for request in waiting {
        rig.raw.send(&request.with_data());
    }
    assert_eq!(read.join().unwrap().unwrap(), expected(0, length));
}

#[test]
fn a_write_is_cut_into_chunks_of_32_kib() {
    let (mut rig, client) = agreed();
    let data = expected(0, 2 * 32768 + 5);
    let write = write_apart(&client, 0x1000, data.clone());
    let mut came: Vec<u8> = Vec::new();
    for (number, count) in [(0, 32768), (1, 32768), (2, 5)] {
        let request = request(&mut rig.raw);
        assert_eq!((request.command, request.count), (WRITE, count));
        assert_eq!(request.address, 0x1000 + number * 32768);
        assert_eq!(request.data.len() as u64, count);
        came.extend(&request.data);
        rig.raw.send(&message(request.id, WRITE, REPLY, &[]));
    }
    write.join().unwrap().unwrap();
    assert_eq!(came, data);
}

#[test]
fn chunks_are_no_larger_than_the_client_takes() {
    let mut rig = Rig::fresh();
    let json = r#"{"capabilities":{"max_data_xfer_size":1000}}"#;
    rig.raw.ask(1, &version(0, 0, json)).ok();
    let client = rig.clients.recv().unwrap();
    let write = write_apart(&client, 0, vec![7; 1500]);
    for count in [1000, 500] {
        let request = request(&mut rig.raw);
        assert_eq!(request.count, count);
        let access = quads(&[request.address, request.count]);
        rig.raw.send(&message(request.id, WRITE, REPLY, &access));
    }
    write.join().unwrap().unwrap();
    let read = read_apart(&client, 0, 1500);
    for count in [1000, 500] {
        let request = request(&mut rig.raw);
        assert_eq!(request.count, count);
        rig.raw.send(&request.with_data());
    }
    assert_eq!(read.join().unwrap().unwrap(), expected(0, 1500));
}

#[test]
fn replies_reach_their_threads_in_any_order() {
    let (mut rig, client) = agreed();
    let addresses = (0..8).map(|thread| thread << 32);
    let reads: Vec<_> = addresses
        .map(|address| (address, read_apart(&client, address, 200_000)))
        .collect();
    // Seven chunks each, all in flight at once, answered backwards.
    let waiting: Vec<Request> = (0..56).map(|_| request(&mut rig.raw)).collect();
    for request in waiting.iter().rev() {
        rig.raw.send(&request.with_data());
    }
    for (address, read) in reads {
        assert_eq!(read.join().unwrap().unwrap(), expected(address, 200_000));
    }
}

#[test]
fn reads_and_writes_of_many_threads_never_mix() {
    let (mut rig, client) = agreed();
    let writes: Vec<_> = (0..4_u8)
        .map(|number| {
            let data = vec![number; 30_000];
            write_apart(&client, u64::from(number) << 40, data)
        })
        .collect();
    let reads: Vec<_> = (0..4)
        .map(|number| read_apart(&client, number << 20, 32768))
        .collect();
    for _ in 0..8 {
        let request = request(&mut rig.raw);
        if request.command == WRITE {
            let number = (request.address >> 40) as u8;
            assert_eq!(request.data, vec![number; 30_000]);
            rig.raw.send(&message(request.id, WRITE, REPLY, &[]));
        } else {
            rig.raw.send(&request.with_data());
        }
    }
    for write in writes {
        write.join().unwrap().unwrap();
    }
    for (number, read) in (0..).zip(reads) {
        assert_eq!(read.join().unwrap().unwrap(), expected(number << 20, 32768));
    }
}

#[test]
fn short_write_passes_long_transfer_without_replies() {
    let (mut rig, client) = agreed();
    for long in [true, false] {
        let long = if long {
            let read = read_apart(&client, 0, 1 << 20);
            thread::spawn(move || read.join().unwrap().map(drop))
        } else {
            write_apart(&client, 0, vec![0; 1 << 20])
        };
        let waiting: Vec<Request> = (0..16).map(|_| request(&mut rig.raw)).collect();
        let short = write_apart(&client, 0x1000, vec![7; 16]);
        let completion = request(&mut rig.raw);
        assert_eq!((completion.command, completion.data), (WRITE, vec![7; 16]));
        rig.raw.send(&message(completion.id, WRITE, REPLY, &[]));
        short.join().unwrap().unwrap();
        assert!(!long.is_finished());
        for request in waiting {
            rig.raw.send(&request.with_error(5));
        }
        assert!(long.join().unwrap().is_err());
    }
}

#[test]
fn many_requests_of_one_call_are_under_way_at_once() {
    let (mut rig, client) = agreed();
    let call = thread::spawn(move || {
        let mut first = vec![0; 40_000];
        let mut last = vec![0; 8];
        let mut requests = [
            asked::DmaRequest::new(Iova(0x10_0000), Data::Read(&mut first)),
            asked::DmaRequest::new(Iova(0x20_0000), Data::Write(&[3; 8])),
            asked::DmaRequest::new(Iova(0x30_0000), Data::Read(&mut last)),
        ];
        client.carry_out(&mut requests, &|| true);
        let outcomes = requests.map(|request| request.outcome);
        (outcomes, first, last)
    });
    let waiting: Vec<Request> = (0..4).map(|_| request(&mut rig.raw)).collect();
    for request in waiting.iter().rev() {
        match request.command {
            READ => rig.raw.send(&request.with_data()),
            _ => rig.raw.send(&message(request.id, WRITE, REPLY, &[])),
        }
    }
    let (outcomes, first, last) = call.join().unwrap();
    assert_eq!(outcomes, [Some(Ok(())); 3]);
    assert_eq!(first, expected(0x10_0000, 40_000));
    assert_eq!(last, expected(0x30_0000, 8));
}

#[test]
fn failure_ends_the_call_and_each_request_has_an_outcome() {
    let (mut rig, client) = agreed();
    let call = thread::spawn(move || {
        let mut requests = [8, 8, 16 * 32768, 8]
            .map(|length| vec![0; length])
            .map(|data| asked::DmaRequest::new(Iova(0), Data::Write(data.leak())));
        client.carry_out(&mut requests, &|| true);
        requests.map(|request| request.outcome)
    });
    let waiting: Vec<Request> = (0..16).map(|_| request(&mut rig.raw)).collect();
    rig.raw.send(&waiting[1].with_error(19));
    rig.raw.send(&message(waiting[0].id, WRITE, REPLY, &[]));
    for request in waiting.get(2..).unwrap() {
        rig.raw.send(&message(request.id, WRITE, REPLY, &[]));
    }
    let refused = Some(Err(RequestError::Refused(Errno::NODEV)));
    let stopped = Some(Err(RequestError::Stopped));
    let outcomes = [Some(Ok(())), refused, stopped, None];
    assert_eq!(call.join().unwrap(), outcomes);
    // Nothing else has been sent.
    rig.raw.ask(13, &[]).ok();
}

#[test]
fn a_caller_that_must_not_go_on_sends_nothing_more() {
    let (mut rig, client) = agreed();
    let call = thread::spawn(move || {
        let asked = Cell::new(0);
        let mut requests = [asked::DmaRequest::new(
            Iova(0),
            Data::Write(&[0; 3 * 32768]),
        )];
        client.carry_out(&mut requests, &|| asked.replace(asked.get() + 1) < 2);
        let [request] = requests;
        request.outcome
    });
    for _ in 0..2 {
        let request = request(&mut rig.raw);
        rig.raw.send(&message(request.id, WRITE, REPLY, &[]));
    }
    assert_eq!(call.join().unwrap(), Some(Err(RequestError::Stopped)));
    rig.raw.ask(13, &[]).ok();
}

#[test]
fn region_accesses_are_answered_while_requests_wait() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0, 4);
    let request = request(&mut rig.raw);
    for _ in 0..10 {
        rig.raw.ask(9, &region_access(0, 0, 4)).ok();
    }
    rig.raw.send(&request.with_data());
    assert_eq!(read.join().unwrap().unwrap(), expected(0, 4));
}

#[test]
fn an_error_reply_fails_the_call_once_all_replies_are_there() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0, 5 * 32768);
    let waiting: Vec<Request> = (0..5).map(|_| request(&mut rig.raw)).collect();
    rig.raw.send(&waiting[2].with_error(19));
    for number in [0, 1, 3] {
        rig.raw.send(&waiting[number].with_data());
    }
    rig.raw.ask(13, &[]).ok();
    assert!(!read.is_finished());
    rig.raw.send(&waiting[4].with_data());
    let refused = RequestError::Refused(Errno::NODEV);
    assert_eq!(read.join().unwrap(), Err(refused));
}

#[test]
fn a_refused_write_fails_with_the_errno() {
    let (mut rig, client) = agreed();
    for (errno, expected) in [
        (7, Errno::TOOBIG),
        (1, Errno::PERM),
        (0, Errno::IO),
        (u32::MAX, Errno::IO),
    ] {
        let write = write_apart(&client, 0, vec![0; 8]);
        let request = request(&mut rig.raw);
        rig.raw.send(&request.with_error(errno));
        let refused = RequestError::Refused(expected);
        assert_eq!(write.join().unwrap(), Err(refused));
    }
}

#[test]
fn a_reply_that_does_not_fit_its_read_fails_it() {
    let (mut rig, client) = agreed();
    let access = |address, count| quads(&[address, count]);
    let data = |length| vec![0; length];
    let wrong = [
        (READ, Vec::new()),
        (READ, data(15)),
        (READ, access(64, 8)),
        (READ, [access(64, 8), data(7)].concat()),
        (READ, [access(64, 8), data(9)].concat()),
        (READ, [access(64, 9), data(9)].concat()),
        (READ, [access(65, 8), data(8)].concat()),
        (WRITE, [access(64, 8), data(8)].concat()),
        (READ, [access(64, 8), data(2 << 20)].concat()),
    ];
    for (command, payload) in wrong {
        let read = read_apart(&client, 64, 8);
        let request = request(&mut rig.raw);
        rig.raw.send(&message(request.id, command, REPLY, &payload));
        assert_eq!(read.join().unwrap(), Err(PROTO));
    }
}

#[test]
fn a_reply_that_does_not_fit_its_write_fails_it() {
    let (mut rig, client) = agreed();
    for payload in [quads(&[64, 7]), quads(&[63, 8]), vec![0; 3], vec![0; 24]] {
        let write = write_apart(&client, 64, vec![0; 8]);
        let request = request(&mut rig.raw);
        rig.raw.send(&message(request.id, WRITE, REPLY, &payload));
        assert_eq!(write.join().unwrap(), Err(PROTO));
    }
}

#[test]
fn a_second_reply_to_one_request_is_dropped() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0, 2 * 32768);
    let (first, second) = (request(&mut rig.raw), request(&mut rig.raw));
    rig.raw.send(&first.with_data());
    rig.raw.send(&first.with_error(5));
    rig.raw.send(&second.with_data());
    assert_eq!(read.join().unwrap().unwrap(), expected(0, 2 * 32768));
}

#[test]
fn a_hang_up_fails_what_is_pending_and_what_comes() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0, 1 << 20);
    let write = write_apart(&client, 0, vec![0; 100]);
    for _ in 0..17 {
        request(&mut rig.raw);
    }
    rig.hang_up().0.unwrap();
    assert_eq!(read.join().unwrap(), Err(RequestError::Gone));
    assert_eq!(write.join().unwrap(), Err(RequestError::Gone));
    assert_eq!(dma_read(&client, 0, &mut [0]), Err(RequestError::Gone));
    assert_eq!(dma_write(&client, 0, &[0]), Err(RequestError::Gone));
}

#[test]
fn stop_fails_what_is_pending() {
    let (mut rig, client) = agreed();
    let read = read_apart(&client, 0, 8);
    request(&mut rig.raw);
    rig.stop.trigger();
    assert_eq!(read.join().unwrap(), Err(RequestError::Gone));
    rig.wait().unwrap();
}

#[test]
fn a_hang_up_cuts_off_a_write_that_finds_no_room() {
    let (mut rig, client) = agreed();
    let write = write_apart(&client, 0, vec![0; 16 << 20]);
    // The first bytes are there, and more than the socket holds are to come.
    rig.raw.stream.set_nonblocking(false).unwrap();
    let mut first = [0; 16];
    std::io::Read::read_exact(&mut rig.raw.stream, &mut first).unwrap();
    rig.hang_up().0.unwrap();
    assert_eq!(write.join().unwrap(), Err(RequestError::Gone));
}

#[test]
fn request_without_reply_times_out_and_late_reply_is_dropped() {
    let mut rig = Rig::with(|options| options.request_time_out = Duration::from_millis(20));
    rig.agree();
    let client = rig.clients.recv().unwrap();
    assert_eq!(
        dma_read(&client, 0x1000, &mut [0; 8]),
        Err(RequestError::TimedOut)
    );
    let late = request(&mut rig.raw);
    rig.raw.send(&late.with_data());
    rig.raw.ask(13, &[]).ok();
    let (done, outcome) = channel();
    let reader = client.clone();
    thread::spawn(move || {
        let mut data = [0; 4];
        // Repeated, because this machine may be slower than the time-out.
        while dma_read(&reader, 0x2000, &mut data) == Err(RequestError::TimedOut) {}
        done.send(data).unwrap();
    });
    let data = loop {
        if let Ok(data) = outcome.recv_timeout(Duration::from_millis(1)) {
            break data;
        }
        if rig.raw.is_readable() {
            let request = request(&mut rig.raw);
            assert_ne!(request.id, late.id);
            rig.raw.send(&request.with_data());
        }
    };
    assert_eq!(data.to_vec(), expected(0x2000, 4));
}

#[test]
fn time_out_fails_all_pending_and_late_replies_are_dropped() {
    let mut rig = Rig::with(|options| options.request_time_out = Duration::from_millis(20));
    rig.agree();
    let client = rig.clients.recv().unwrap();
    let mut data = vec![1; 20 * 32768];
    let outcome = dma_read(&client, 0, &mut data);
    assert_eq!(outcome, Err(RequestError::TimedOut));
    data.fill(2);
    for _ in 0..16 {
        let request = request(&mut rig.raw);
        rig.raw.send(&request.with_data());
    }
    // This is answered after the replies. So the server has taken them, and has not sent a
    // seventeenth chunk.
    rig.raw.ask(13, &[]).ok();
    assert_eq!(data, vec![2; 20 * 32768]);
}

/// The client's reaction to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Right,
    Short,
    Refused,
    /// Right, after a reply with an id that is not in use.
    Stray(u16),
    Twice,
}

fn manners() -> impl Strategy<Value = Manner> {
    prop_oneof![
        12 => Just(Manner::Right),
        1 => Just(Manner::Short),
        1 => Just(Manner::Refused),
        2 => (100..u16::MAX).prop_map(Manner::Stray),
        2 => Just(Manner::Twice),
    ]
}

fn answer(raw: &mut RawClient, request: &Request, manner: Manner) {
    let right = request.with_data();
    match manner {
        Manner::Right => raw.send(&right),
        Manner::Short => raw.send(&message(
            request.id,
            READ,
            REPLY,
            &right[16..right.len() - 1],
        )),
        Manner::Refused => raw.send(&request.with_error(19)),
        Manner::Stray(id) => raw.send(&[message(id, READ, REPLY, &right[16..]), right].concat()),
        Manner::Twice => raw.send(&[right.clone(), right].concat()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_read_is_whole_or_fails_however_it_is_answered(
        manners in prop::collection::vec(manners(), 1..40),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let (mut rig, client) = agreed();
        let length = manners.len() * 32768;
        let read = read_apart(&client, 0, length);
        let mut waiting = Vec::new();
        let mut unsent = manners.len();
        let mut failed = false;
        for choice in choices.iter().take(manners.len()) {
            while waiting.len() < 16 && unsent > 0 && !failed {
                waiting.push(request(&mut rig.raw));
                unsent -= 1;
            }
            let Some(index) = (!waiting.is_empty()).then(|| choice.index(waiting.len())) else {
                break;
            };
            let request = waiting.swap_remove(index);
            let manner = manners[(request.address / 32768) as usize];
            failed |= matches!(manner, Manner::Short | Manner::Refused);
            answer(&mut rig.raw, &request, manner);
        }
        match read.join().unwrap() {
            Ok(data) => prop_assert!(!failed && data == expected(0, length)),
            Err(_) => prop_assert!(failed),
        }
    }
}

#[test]
fn range_beyond_the_address_space_is_not_sent() {
    let (mut rig, client) = agreed();
    let refused = Err(RequestError::Refused(Errno::INVAL));
    assert_eq!(dma_read(&client, u64::MAX, &mut [0; 2]), refused);
    assert_eq!(dma_write(&client, u64::MAX - 6, &[0; 8]), refused);
    assert_eq!(dma_read(&client, 5, &mut []), Ok(()));
    let write = write_apart(&client, u64::MAX - 7, vec![1; 8]);
    let request = request(&mut rig.raw);
    assert_eq!((request.address, request.count), (u64::MAX - 7, 8));
    rig.raw.send(&message(request.id, WRITE, REPLY, &[]));
    write.join().unwrap().unwrap();
}
