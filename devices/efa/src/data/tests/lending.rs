//! Memory that adapters lend to each other, and what becomes of it meanwhile.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::{Direction, Purpose, Requester};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::super::packet::{LentRange, Packet, Refusal, Verb, decode_answer};
use super::super::wire::Arrival;
use super::super::work_request::Buffer;
use super::fixture::{PAYLOAD, Post, QKEY};
use super::remote::{A, TO, Two};
use crate::objects::{Gid, QueuePairState};

/// Three loans, the last of them of one byte.
const LENGTH: u32 = (2 << 20) + 1;

/// Bytes of payload that a function has read, or written, and how many of its requests failed.
fn payload(requester: &Requester, direction: Direction) -> (u64, u64) {
    let counts = requester.counters().snapshot().into_iter();
    let counts =
        counts.filter(|(kind, _)| kind.purpose == Purpose::Payload && kind.direction == direction);
    counts.fold((0, 0), |(bytes, failures), (_, count)| {
        (bytes + count.bytes, failures + count.failures)
    })
}

/// Two that lend, with a region each, and the post of an operation between those.
fn two(operation: Operation) -> (Two, Post) {
    let it = Two::lending();
    let length = u64::from(LENGTH);
    let (near, far) = (it.near.region(PAYLOAD, length), it.far.region(TO, length));
    let (local, remote) = ((near.local, PAYLOAD, LENGTH), (far.remote, TO, LENGTH));
    let post = it.rdma(operation, local, remote);
    (it, post)
}

/// Works until a packet of memory that is lent flies, or a file.
fn work_until(it: &mut Two, verb: Verb) {
    for _ in 0..1000 {
        let waits = [it.near.work(), it.far.work()];
        let flying = it.air.flying.lock();
        let is_there = flying.iter().any(|(_, arrival)| {
            let packet = Packet::decode(&arrival.data);
            packet.is_some_and(|(packet, _)| packet.verb == verb)
        });
        drop(flying);
        if is_there {
            return;
        }
        it.deliver();
        if let Some(wait) = waits.into_iter().flatten().min() {
            it.near.now += wait;
            it.far.now += wait;
        }
    }
    panic!("no {verb:?} flies");
}

#[test]
fn write_is_copied_once_and_counted_on_both_sides() {
    let (mut it, post) = two(Operation::RdmaWrite);
    let data = it.near.fill(PAYLOAD, LENGTH as usize, 5);
    let post = Post {
        immediate: Some(9),
        ..post
    };
    it.far.receive(&mut it.b, 1, &[(0, 0, 0)]);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert!(it.far.bytes(TO, LENGTH as usize) == data);
    assert_eq!(it.far.one(&mut it.b).bytes, LENGTH);
    let length = u64::from(LENGTH);
    let (near, far) = (it.near.path.statistics(), it.far.path.statistics());
    assert_eq!((near.packet_bytes, near.lent_bytes), (0, length));
    assert_eq!((far.packet_bytes, far.bounced_bytes), (0, 0));
    assert_eq!(near.sent_bytes, far.write_received_bytes);
    assert_eq!(payload(&it.near.requester, Direction::Read), (length, 0));
    assert_eq!(payload(&it.far.requester, Direction::Write), (length, 0));
    assert_eq!(it.near.path.objects().loan_count(), 0);
}

#[test]
fn read_is_copied_once_and_counted_on_both_sides() {
    let (mut it, post) = two(Operation::RdmaRead);
    let data = it.far.fill(TO, LENGTH as usize, 6);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert!(it.near.bytes(PAYLOAD, LENGTH as usize) == data);
    let length = u64::from(LENGTH);
    let (near, far) = (it.near.path.statistics(), it.far.path.statistics());
    assert_eq!((far.packet_bytes, far.lent_bytes), (0, length));
    assert_eq!(far.read_response_bytes, length);
    assert_eq!((near.received_bytes, near.bounced_bytes), (length, 0));
    assert_eq!(payload(&it.far.requester, Direction::Read), (length, 0));
    assert_eq!(payload(&it.near.requester, Direction::Write), (length, 0));
    assert_eq!(it.far.path.objects().loan_count(), 0);
}

#[test]
fn write_from_memory_that_is_unmapped_meanwhile_fails() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    work_until(&mut it, Verb::Write);
    it.near.requester.unmap(PAYLOAD, PAYLOAD + 0xfff);
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    assert_eq!(payload(&it.near.requester, Direction::Read).0, 0);
}

#[test]
fn read_of_memory_that_is_unmapped_meanwhile_fails() {
    let (mut it, post) = two(Operation::RdmaRead);
    it.send(&post);
    work_until(&mut it, Verb::Return);
    it.far.requester.unmap(TO, TO + 0xfff);
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::RemoteBadAddress);
    assert_eq!(it.far.path.statistics().lent_bytes, 0);
}

#[test]
fn write_from_a_region_that_is_removed_meanwhile_fails() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    work_until(&mut it, Verb::Write);
    let (key, ..) = post.local[0];
    it.near.path.objects().deregister_region(key).unwrap();
    assert_eq!(it.near.path.objects().loan_count(), 0);
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
}

#[test]
fn read_of_a_queue_pair_that_fails_meanwhile_fails() {
    let (mut it, post) = two(Operation::RdmaRead);
    it.send(&post);
    work_until(&mut it, Verb::Return);
    it.far.set_state(it.b.number, QueuePairState::Error);
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::RemoteBadQueuePair);
    assert_eq!(it.far.path.statistics().lent_bytes, 0);
}

#[test]
fn reset_gives_back_what_is_lent() {
    for state in [QueuePairState::Reset, QueuePairState::Error] {
        let (mut it, post) = two(Operation::RdmaWrite);
        it.send(&post);
        work_until(&mut it, Verb::Write);
        assert_eq!(it.near.path.objects().loan_count(), 1);
        it.near.set_state(it.a.number, state);
        assert_eq!(it.near.path.objects().loan_count(), 0, "{state:?}");
        it.work();
    }
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    work_until(&mut it, Verb::Write);
    it.near.path.reset();
    assert_eq!(it.near.path.objects().loan_count(), 0);
}

#[test]
fn file_that_shrinks_meanwhile_fails_the_write_alone() {
    const LENT: u64 = 0x4000_0000;

    let mut it = Two::lending();
    let fd = memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 1 << 20).unwrap();
    let lent = Some((fd.try_clone().unwrap(), 0));
    let mapped = it.near.requester.map(LENT, 1 << 20, (true, true), lent);
    mapped.unwrap();
    let (near, far) = (it.near.region(LENT, 1 << 20), it.far.region(TO, 1 << 20));
    let (local, remote) = ((near.local, LENT, 1 << 20), (far.remote, TO, 1 << 20));
    let post = it.rdma(Operation::RdmaWrite, local, remote);
    it.send(&post);
    work_until(&mut it, Verb::Write);
    ftruncate(&fd, 0).unwrap();
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    let good = it.near.region(PAYLOAD, 4096);
    let post = Post {
        local: vec![(good.local, PAYLOAD, 4096)],
        remote: (far.remote, TO, 4096),
        ..post
    };
    let data = it.near.fill(PAYLOAD, 4096, 3);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.far.bytes(TO, 4096), data);
}

#[test]
fn memory_that_is_not_mapped_here_goes_in_packets() {
    let mut it = Two::lending();
    let asked = it.near.asked_memory();
    let (near, far) = (it.near.region(asked, 1 << 16), it.far.region(TO, 1 << 16));
    let (local, remote) = ((near.local, asked, 1 << 16), (far.remote, TO, 1 << 16));
    let write = it.rdma(Operation::RdmaWrite, local, remote);
    assert_eq!(it.done(&write).status, CompletionStatus::Ok);
    let statistics = it.near.path.statistics();
    assert_eq!(
        (statistics.packet_bytes, statistics.lent_bytes),
        (1 << 16, 0)
    );
    // Into it goes a read, by way of a buffer.
    let data = it.far.fill(TO, 1 << 16, 4);
    let read = it.rdma(Operation::RdmaRead, local, remote);
    assert_eq!(it.done(&read).status, CompletionStatus::Ok);
    assert_eq!(it.far.path.statistics().lent_bytes, 1 << 16);
    assert_eq!(it.near.path.statistics().bounced_bytes, 1 << 16);
    let mut found = vec![0; 1 << 16];
    let read = it.near.requester.read(Purpose::Payload, asked, &mut found);
    read.unwrap();
    assert!(found == data);
}

#[test]
fn adapter_that_forgot_its_lender_is_shown_the_memory_again() {
    let (mut it, post) = two(Operation::RdmaWrite);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    let length = u64::from(LENGTH);
    assert_eq!(it.near.path.statistics().lent_bytes, length);
    it.far.path.mailbox.note_gone(Some(A));
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    let statistics = it.near.path.statistics();
    assert_eq!(
        (statistics.packet_bytes, statistics.lent_bytes),
        (length, length)
    );
    it.near.now += Duration::from_secs(2);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.near.path.statistics().lent_bytes, 2 * length);
}

/// Sends a packet to the far adapter as a third one; its answer, if there is one.
fn ask(it: &mut Two, packet: &Packet, payload: &[u8], fd: Option<OwnedFd>) -> Option<Vec<u8>> {
    let answer = Arc::new(Mutex::new(None));
    let to_answer = answer.clone();
    it.far.path.mailbox.arrive(Arrival {
        from: A,
        data: packet.encode(payload),
        descriptors: fd.into_iter().collect(),
        reply: Some(Box::new(move |data| *to_answer.lock() = Some(data))),
    });
    it.far.work();
    answer.lock().take()
}

fn lent_packet(it: &Two, verb: Verb, remote: u32, bytes: u32) -> Packet {
    Packet {
        verb,
        source: 77,
        destination: it.b.number,
        qkey: QKEY,
        immediate: None,
        is_lent: true,
        part: Buffer {
            key: remote,
            address: TO + super::fixture::VIRTUAL,
            bytes,
        },
        total: bytes,
    }
}

#[test]
fn reader_that_gives_nothing_back_has_a_few_loans() {
    let (mut it, post) = two(Operation::RdmaRead);
    let (key, ..) = post.remote;
    let show = Packet::of_adapter(Verb::Show, 1, 0);
    for _ in 0..300 {
        let read = lent_packet(&it, Verb::Read, key, 4096);
        // The first waits until the reader has said that it knows the file.
        let _ = ask(&mut it, &read, &[], None);
        while let Some((_, arrival)) = it.air.flying.lock().pop() {
            arrival.reply.unwrap()(vec![0]);
        }
        it.far.work();
    }
    assert_eq!(it.far.path.objects().loan_count(), 64);
    assert!(ask(&mut it, &show, &[], None).is_some());
    it.far.path.mailbox.note_gone(Some(A));
    it.far.work();
    assert_eq!(it.far.path.objects().loan_count(), 0);
}

#[test]
fn loan_of_one_adapter_is_not_given_back_by_another() {
    let (mut it, post) = two(Operation::RdmaRead);
    it.send(&post);
    work_until(&mut it, Verb::Return);
    let (_, arrival) = it.air.flying.lock().pop().unwrap();
    let foreign = Arc::new(Mutex::new(None));
    let to_foreign = foreign.clone();
    it.far.path.mailbox.arrive(Arrival {
        from: Gid([0xc; 16]),
        data: arrival.data.clone(),
        descriptors: Vec::new(),
        reply: Some(Box::new(move |data| *to_foreign.lock() = Some(data))),
    });
    it.far.work();
    let answer = foreign.lock().take().unwrap();
    assert_eq!(decode_answer(&answer), Err(Refusal::NotLent));
    assert_eq!(it.far.path.objects().loan_count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What is named beyond a file, or of none, is refused, and all that is copied is the lender's.
    #[test]
    fn hostile_lender_moves_its_own_bytes_or_none(
        shown in 0u64..8192,
        ranges in proptest::collection::vec((0u32..3, prop_oneof![0u64..9000, any::<u64>()], 1u32..5000), 0..4),
    ) {
        let (mut it, post) = two(Operation::RdmaWrite);
        let (key, ..) = post.remote;
        let fd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, shown).unwrap();
        rustix::io::pwrite(&fd, &vec![7; usize::try_from(shown).unwrap()], 0).unwrap();
        let show = Packet::of_adapter(Verb::Show, 1, 0);
        ask(&mut it, &show, &[], Some(fd)).unwrap();
        let bytes = ranges.iter().map(|(_, _, bytes)| bytes).sum();
        let list: Vec<LentRange> = ranges
            .iter()
            .map(|(file, offset, bytes)| LentRange::new(*file, *offset, *bytes))
            .collect();
        let write = lent_packet(&it, Verb::Write, key, bytes);
        let answer = ask(&mut it, &write, LentRange::bytes_of(&list), None).unwrap();
        let is_inside = |(file, offset, bytes): &(u32, u64, u32)| {
            let end = offset.checked_add(u64::from(*bytes));
            *file == 1 && end.is_some_and(|end| end <= shown)
        };
        let is_right = ranges.iter().all(is_inside);
        let found = it.far.bytes(TO, bytes as usize + 1);
        let wanted = if is_right { 7 } else { 0 };
        let (copied, behind) = found.split_at(bytes as usize);
        prop_assert!(copied.iter().all(|byte| *byte == wanted));
        prop_assert_eq!(behind, [0]);
        let wanted = if is_right { Ok(&[][..]) } else { Err(Refusal::NotLent) };
        prop_assert_eq!(decode_answer(&answer), wanted);
    }
}

#[test]
fn addresses_of_any_number_are_kept_up_to_a_limit() {
    let (mut it, post) = two(Operation::RdmaWrite);
    for number in 0..600u32 {
        let mut gid = [0xd; 16];
        gid[..4].copy_from_slice(&number.to_le_bytes());
        let handle = it.near.handle_to(Gid(gid));
        let post = Post {
            handle,
            ..post.clone()
        };
        assert_eq!(it.done(&post).status, CompletionStatus::RemoteAbort);
    }
    let viewers = it.near.worker.parts.lending.viewer_count();
    assert!((1..=256).contains(&viewers), "{viewers}");
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
}
