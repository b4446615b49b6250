//! Payload that passes between two adapters through slots, and the end of a slot's users.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::{Direction, MemoryFile, Purpose, Requester};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_pci::{Iova, Range};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use super::super::wire::Arrival;
use super::fixture::{Adapter, PAYLOAD, Post, QKEY, VIRTUAL};
use super::remote::{A, B, TO, Two};
use crate::objects::{Gid, QueuePairState};
use crate::work::packet::{Packet, Refusal, Verb, decode_answer};
use crate::work::request::Buffer;
use crate::work::staging::{SLOT_BYTES, SLOTS, SlotName};

/// Many parts. The last has one byte.
const LENGTH: u32 = (2 << 20) + 1;
/// Length of the first read, whose payload goes in a packet while the buffer is shared.
const FIRST: u32 = 4097;

/// Returns the bytes of payload that a function has read or written, and the number of its failed
/// requests.
fn payload(requester: &Requester, direction: Direction) -> (u64, u64) {
    let counts = requester.ledger().counters().snapshot().into_iter();
    let counts =
        counts.filter(|(kind, _)| kind.purpose == Purpose::Payload && kind.direction == direction);
    counts.fold((0, 0), |(bytes, failures), (_, count)| {
        (bytes + count.bytes, failures + count.failures)
    })
}

/// Makes two adapters whose near one has shared its buffer, and the post of an operation between a
/// region of each.
fn two(operation: Operation) -> (Two, Post) {
    let mut it = Two::sharing();
    let length = u64::from(LENGTH);
    let (near, far) = (it.near.region(PAYLOAD, length), it.far.region(TO, length));
    let (local, remote) = ((near.local, PAYLOAD, LENGTH), (far.remote, TO, LENGTH));
    let first = it.rdma(
        Operation::RdmaRead,
        (near.local, PAYLOAD, FIRST),
        (far.remote, TO, FIRST),
    );
    assert_eq!(it.done(&first).status, CompletionStatus::Ok);
    let post = it.rdma(operation, local, remote);
    (it, post)
}

/// Returns the same, with the first part of the operation in transit.
fn flying(operation: Operation) -> (Two, Post) {
    let (mut it, post) = two(operation);
    it.send(&post);
    it.near.work();
    assert_eq!(it.air.flying.lock().len(), 1);
    assert_eq!(slots_in_use(&it.near), Some(1));
    (it, post)
}

fn slots_in_use(adapter: &Adapter) -> Option<usize> {
    adapter.worker.peers.staging.slots_in_use(B)
}

/// Returns the bytes of payload that an adapter has sent in packets, and through slots.
fn sent(adapter: &Adapter) -> (u64, u64) {
    let statistics = adapter.path.statistics();
    (statistics.packet_bytes, statistics.staged_bytes)
}

#[test]
fn write_passes_through_slots_and_is_counted_on_both_sides() {
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
    assert_eq!(sent(&it.near), (0, length));
    let far = it.far.path.statistics();
    assert_eq!((far.write_received_bytes, far.bounced_bytes), (length, 0));
    assert_eq!(payload(&it.near.requester, Direction::Read), (length, 0));
    assert_eq!(payload(&it.far.requester, Direction::Write), (length, 0));
    assert_eq!(slots_in_use(&it.near), Some(0));
}

#[test]
fn read_passes_through_slots_and_is_counted_on_both_sides() {
    let (mut it, post) = two(Operation::RdmaRead);
    let data = it.far.fill(TO, LENGTH as usize, 6);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert!(it.near.bytes(PAYLOAD, LENGTH as usize) == data);
    let (first, length) = (u64::from(FIRST), u64::from(LENGTH));
    assert_eq!(sent(&it.far), (first, length));
    let (near, far) = (it.near.path.statistics(), it.far.path.statistics());
    assert_eq!(far.read_response_bytes, first + length);
    assert_eq!(
        (near.received_bytes, near.bounced_bytes),
        (first + length, 0)
    );
    assert_eq!(
        payload(&it.far.requester, Direction::Read),
        (first + length, 0)
    );
    assert_eq!(
        payload(&it.near.requester, Direction::Write),
        (first + length, 0)
    );
    assert_eq!(slots_in_use(&it.near), Some(0));
}

#[test]
fn payload_goes_in_packets_until_the_buffer_is_known() {
    let mut it = Two::sharing();
    let (near, far) = (it.near.region(PAYLOAD, 8192), it.far.region(TO, 8192));
    let (local, remote) = ((near.local, PAYLOAD, 8192), (far.remote, TO, 8192));
    let post = it.rdma(Operation::RdmaWrite, local, remote);
    for expected in [(8192, 0), (8192, 8192)] {
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        assert_eq!(sent(&it.near), expected);
    }
    *it.air.shares.lock() = false;
    it.near.now += Duration::from_secs(1);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(sent(&it.near), (2 * 8192, 8192), "the wire forbids it");
}

#[test]
fn transfers_that_need_more_slots_than_there_are_come_to_an_end() {
    let (mut it, post) = two(Operation::RdmaWrite);
    let data = it.near.fill(PAYLOAD, LENGTH as usize, 7);
    for _ in 0..12 {
        it.send(&post);
    }
    it.work();
    let statuses = it.near.statuses(&mut it.a);
    assert_eq!(statuses.len(), 12);
    assert!(statuses.iter().all(|it| it.1 == CompletionStatus::Ok));
    assert!(it.far.bytes(TO, LENGTH as usize) == data);
    assert_eq!(slots_in_use(&it.near), Some(0));
}

#[test]
fn long_transfers_of_one_queue_pair_leave_slots_to_another() {
    let (mut it, long) = two(Operation::RdmaWrite);
    let mut other = it.near.reliable();
    let short = Post {
        local: vec![(long.local[0].0, PAYLOAD, 8192)],
        remote: (long.remote.0, TO, 8192),
        ..long.clone()
    };
    for _ in 0..12 {
        it.send(&long);
    }
    it.near.work();
    it.near.send(&mut other, &short);
    for answers in 0.. {
        it.near.work();
        if !it.near.statuses(&mut other).is_empty() {
            break;
        }
        assert!(answers < 40, "the short transfer starves");
        assert!(it.deliver());
        it.far.work();
    }
    it.work();
    assert_eq!(it.near.statuses(&mut it.a).len(), 12);
}

#[test]
fn queue_pair_that_waits_again_after_a_reset_waits_once() {
    let (mut it, long) = two(Operation::RdmaWrite);
    for _ in 0..3 {
        for _ in 0..12 {
            it.send(&long);
        }
        it.near.work();
        assert_eq!(it.near.worker.peers.staging.waiters(), 1);
        it.near.set_state(it.a.number, QueuePairState::Reset);
        it.near.make_ready(it.a.number);
        it.a.sent = 0;
    }
    it.work();
    assert_eq!(it.near.worker.peers.staging.waiters(), 0);
    assert_eq!(slots_in_use(&it.near), Some(0));
}

#[test]
fn messages_and_short_transfers_share_no_buffer() {
    let mut it = Two::sharing();
    let (from, to) = (it.near.region(PAYLOAD, 4096), it.far.region(TO, 4096));
    it.far.receive(&mut it.b, 1, &[(to.local, TO, 100)]);
    let message = Post::send(&it.b, it.handle, &[(from.local, PAYLOAD, 100)]);
    assert_eq!(it.done(&message).status, CompletionStatus::Ok);
    let (local, remote) = ((from.local, PAYLOAD, 4096), (to.remote, TO, 4096));
    let write = it.rdma(Operation::RdmaWrite, local, remote);
    assert_eq!(it.done(&write).status, CompletionStatus::Ok);
    assert_eq!(slots_in_use(&it.near), None);
}

#[test]
fn write_has_what_its_memory_had_when_it_was_sent() {
    let (mut it, _) = flying(Operation::RdmaWrite);
    it.near
        .requester
        .unmap(Range::from_bounds(Iova(PAYLOAD), Iova(PAYLOAD + 0xfff)).unwrap());
    // The guest gives the page to another owner.
    it.near.ram.write(PAYLOAD, &[0x5e; 0x1000]).unwrap();
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
    assert!(!it.far.bytes(TO, 0x1000).contains(&0x5e));
}

#[test]
fn read_of_memory_that_is_unmapped_meanwhile_fails() {
    for (is_far, status) in [
        (true, CompletionStatus::RemoteBadAddress),
        (false, CompletionStatus::LocalInvalidKey),
    ] {
        let (mut it, _) = flying(Operation::RdmaRead);
        match is_far {
            true => it
                .far
                .requester
                .unmap(Range::from_bounds(Iova(TO), Iova(TO + 0xfff)).unwrap()),
            false => it
                .near
                .requester
                .unmap(Range::from_bounds(Iova(PAYLOAD), Iova(PAYLOAD + 0xfff)).unwrap()),
        }
        it.far.ram.write(TO, &[0x5e; 0x1000]).unwrap();
        it.work();
        assert_eq!(it.near.one(&mut it.a).status, status);
        assert!(!it.near.bytes(PAYLOAD, 0x1000).contains(&0x5e));
        assert_eq!(slots_in_use(&it.near), Some(0));
    }
}

#[test]
fn slots_of_a_queue_pair_that_is_gone_are_free_once_they_are_answered() {
    let ends: [fn(&mut Two); 3] = [
        |it| it.near.set_state(it.a.number, QueuePairState::Reset),
        |it| it.near.set_state(it.a.number, QueuePairState::Error),
        |it| it.near.path.reset(),
    ];
    for end in ends {
        for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
            let (mut it, _) = flying(operation);
            end(&mut it);
            assert_eq!(slots_in_use(&it.near), Some(1));
            it.work();
            assert_eq!(slots_in_use(&it.near), Some(0));
        }
    }
}

#[test]
fn slot_that_waits_for_the_wire_is_copied_once_and_freed_with_its_queue_pair() {
    for is_reset in [false, true] {
        let (mut it, post) = two(Operation::RdmaWrite);
        *it.air.limit.lock() = Some(0);
        it.send(&post);
        for _ in 0..50 {
            let wait = it.near.work().unwrap();
            it.near.now += wait;
        }
        let read = payload(&it.near.requester, Direction::Read);
        assert_eq!(read, (u64::from(SLOT_BYTES), 0));
        assert_eq!(slots_in_use(&it.near), Some(1));
        *it.air.limit.lock() = None;
        if is_reset {
            it.near.set_state(it.a.number, QueuePairState::Reset);
            it.work();
        } else {
            it.work();
            assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
        }
        assert_eq!(slots_in_use(&it.near), Some(0));
    }
}

#[test]
fn slot_of_a_request_without_an_answer_is_never_used_again() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let (mut it, post) = flying(operation);
        it.air.flying.lock().clear();
        it.work();
        let done = it.near.one(&mut it.a);
        assert_eq!(done.status, CompletionStatus::RemoteAbort);
        assert_eq!(slots_in_use(&it.near), None, "the buffer is given up");
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        assert_eq!(slots_in_use(&it.near), None);
        it.near.now += Duration::from_secs(2);
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        assert_eq!(slots_in_use(&it.near), Some(0), "there is another one");
    }
}

#[test]
fn adapter_that_lost_the_buffer_gets_packets_and_then_another_one() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let (mut it, post) = two(operation);
        it.far.path.mailbox.note_gone(Some(A));
        let sender = |it: &Two| match operation {
            Operation::RdmaRead => sent(&it.far),
            _ => sent(&it.near),
        };
        let (before, length) = (sender(&it).0, u64::from(LENGTH));
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        let (in_packets, _) = sender(&it);
        assert_eq!(in_packets - before, length);
        if operation == Operation::RdmaWrite {
            assert_eq!(it.near.path.statistics().sent_bytes, length, "each once");
        }
        assert_eq!(it.near.path.statistics().refused_buffers, 1);
        it.near.now += Duration::from_secs(2);
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        assert!(sender(&it).1 > 0);
        assert_eq!(slots_in_use(&it.near), Some(0));
    }
}

#[test]
fn memory_that_is_not_mapped_here_passes_through_slots_by_way_of_a_buffer() {
    let (mut it, _) = two(Operation::RdmaWrite);
    let asked = it.near.asked_memory();
    let near = it.near.region(asked, 1 << 16);
    let far = it.far.region(TO, 1 << 16);
    let (local, remote) = ((near.local, asked, 1 << 16), (far.remote, TO, 1 << 16));
    let data = it.far.fill(TO, 1 << 16, 4);
    for operation in [Operation::RdmaRead, Operation::RdmaWrite] {
        let post = it.rdma(operation, local, remote);
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
        it.far.fill(TO, 1 << 16, 4);
    }
    assert_eq!(it.near.path.statistics().bounced_bytes, 2 << 16);
    assert_eq!(sent(&it.near), (0, 1 << 16));
    let mut found = vec![0; 1 << 16];
    let read = it
        .near
        .requester
        .read(Purpose::Payload, Iova(asked), &mut found);
    read.unwrap();
    assert!(found == data);
}

#[test]
fn addresses_of_any_number_are_remembered_up_to_a_limit() {
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
    let (peers, buffers) = it.near.worker.peers.staging.counts();
    assert!(
        (1..=256).contains(&peers) && buffers <= 1,
        "{peers} {buffers}"
    );
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
}

/// Sends a packet to the far adapter as the near one. Returns its answer.
fn ask(it: &mut Two, packet: &Packet, payload: &[u8], fds: Vec<OwnedFd>) -> Option<Vec<u8>> {
    let answer = Arc::new(Mutex::new(None));
    let to_answer = answer.clone();
    it.far.path.mailbox.arrive(Arrival {
        from: A,
        data: packet.encode(payload),
        descriptors: fds,
        reply: Some(Box::new(move |data| *to_answer.lock() = Some(data))),
    });
    it.far.work();
    answer.lock().take()
}

/// Offers a buffer that this test made to the far adapter, as number 7. Returns `true` if it takes
/// the buffer.
fn share(it: &mut Two, fds: Vec<OwnedFd>) -> bool {
    let mut share = Packet {
        verb: Verb::Share,
        ..Packet::default()
    };
    share.part.address = 7;
    let answer = ask(it, &share, &[], fds).unwrap();
    decode_answer(&answer).is_ok()
}

fn staged(it: &Two, verb: Verb, key: u32, bytes: u32) -> Packet {
    Packet {
        verb,
        source: 77,
        destination: it.b.number,
        qkey: QKEY,
        immediate: None,
        is_staged: true,
        part: Buffer {
            key,
            address: TO + VIRTUAL,
            bytes,
        },
        total: bytes,
    }
}

fn buffer() -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, u64::from(SLOTS * SLOT_BYTES)).unwrap();
    fd
}

#[test]
fn buffer_that_its_owner_shortens_fails_its_own_transfers_alone() {
    for verb in [Verb::Write, Verb::Read] {
        let (mut it, post) = two(Operation::RdmaWrite);
        let (key, ..) = post.remote;
        let fd = buffer();
        assert!(share(&mut it, vec![fd.try_clone().unwrap()]));
        let packet = staged(&it, verb, key, 4096);
        let slot = SlotName::new(7, 3);
        let answer = ask(&mut it, &packet, slot.as_bytes(), vec![]).unwrap();
        assert!(decode_answer(&answer).is_ok(), "{verb:?}");
        ftruncate(&fd, 0).unwrap();
        let written = payload(&it.far.requester, Direction::Write).0;
        for _ in 0..2 {
            let answer = ask(&mut it, &packet, slot.as_bytes(), vec![]).unwrap();
            assert_eq!(decode_answer(&answer), Err(Refusal::NotStaged), "{verb:?}");
        }
        // The first copy has read zeros in place of the slot, and has written them.
        let zeros = if verb == Verb::Write { 4096 } else { 0 };
        let now = payload(&it.far.requester, Direction::Write).0;
        assert_eq!(now - written, zeros);
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    }
}

#[test]
fn no_other_file_is_taken_for_a_buffer() {
    let (mut it, _) = two(Operation::RdmaWrite);
    let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    // On a file system with a block device.
    let path = std::env::current_exe().unwrap();
    let on_disk = std::fs::File::open(path).unwrap().into();
    assert!(!share(&mut it, vec![]));
    assert!(!share(&mut it, vec![short]));
    assert!(!share(&mut it, vec![on_disk]));
    *it.air.shares.lock() = false;
    assert!(!share(&mut it, vec![buffer()]), "the wire forbids it");
    *it.air.shares.lock() = true;
    assert!(share(&mut it, vec![buffer()]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Only a slot of the peer's own buffer is read or written, and memory only as far as the
    /// packet says.
    #[test]
    fn hostile_peer_moves_the_bytes_of_its_own_slot_or_none(
        number in 6u32..9,
        index in prop_oneof![0..2 * SLOTS, any::<u32>()],
        bytes in 0..=SLOT_BYTES,
        writes in any::<bool>(),
    ) {
        let (mut it, post) = two(Operation::RdmaWrite);
        let (key, ..) = post.remote;
        let fd = buffer();
        let shared = MemoryFile::shared(fd.try_clone().unwrap(), u64::from(SLOTS * SLOT_BYTES)).unwrap();
        shared.write(0, &vec![7; (SLOTS * SLOT_BYTES) as usize]).unwrap();
        let is_taken = share(&mut it, vec![fd]);
        prop_assert!(is_taken);
        let data = it.far.fill(TO, bytes as usize + 1, 1);
        let verb = if writes { Verb::Write } else { Verb::Read };
        let packet = staged(&it, verb, key, bytes);
        let slot = SlotName::new(number, index);
        let answer = ask(&mut it, &packet, slot.as_bytes(), vec![]).unwrap();
        let is_slot = number == 7 && index < SLOTS;
        let wanted = if is_slot { Ok(&[][..]) } else { Err(Refusal::NotStaged) };
        prop_assert_eq!(decode_answer(&answer), wanted);
        let mut memory = data.clone();
        let mut slots = vec![7; (SLOTS * SLOT_BYTES) as usize];
        if is_slot && writes {
            memory[..bytes as usize].fill(7);
        } else if is_slot {
            let start = (index * SLOT_BYTES) as usize;
            slots[start..start + bytes as usize].copy_from_slice(&data[..bytes as usize]);
        }
        prop_assert!(it.far.bytes(TO, bytes as usize + 1) == memory);
        let mut found = vec![0; slots.len()];
        shared.read(0, &mut found).unwrap();
        prop_assert!(found == slots);
    }
}
