//! Memory that adapters lend to each other, and what becomes of it meanwhile.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peerbar_dma::{
    BorrowedLoan, Direction, Leases, Loan, LoanWords, MapAccess, MemoryFile, PeerId, PeerMemory,
    PeerWindow, Purpose, Requester, WaitBudget,
};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::super::packet::{LentPart, LentRange, Packet, Refusal, Verb, decode_answer};
use super::super::wire::Arrival;
use super::super::work_request::Buffer;
use super::fixture::{Adapter, PAYLOAD, Post, QKEY};
use super::remote::{A, B, TO, Two};
use crate::objects::{BusSegment, Gid, QueuePairState, RegionKeys};

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

/// Two that lend, with a packet of an operation between their regions on its way.
fn flying(operation: Operation) -> Two {
    let (mut it, post) = two(operation);
    it.send(&post);
    let verb = match operation {
        Operation::RdmaRead => Verb::Read,
        _ => Verb::Write,
    };
    work_until(&mut it, verb);
    it
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
        if it.deliver() || !it.is_idle() {
            continue;
        }
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
    let mut it = flying(Operation::RdmaWrite);
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
    let it = flying(Operation::RdmaWrite);
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
    let mapped = it
        .near
        .requester
        .map(LENT, 1 << 20, MapAccess::READ_WRITE, lent);
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
    assert_eq!(statistics.refused_loans, 1);
    it.near.now += Duration::from_secs(2);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.near.path.statistics().lent_bytes, 2 * length);
}

/// Sends a packet to the far adapter as a third one; its answer, if there is one.
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

/// A lender that this test plays: the far adapter is shown a file of it, as number 1. Its loan, by words of number 2.
struct HostileLender {
    words: Arc<LoanWords>,
    loan: Loan,
}

impl HostileLender {
    fn new(it: &mut Two, fd: OwnedFd) -> Self {
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let segment = BusSegment {
            address: PAYLOAD,
            bytes: 1,
        };
        let tag = super::super::responder::tag(0);
        let transfers = &mut it.near.worker.state.transfers;
        let loan = transfers.lend(tag, &[segment], &words).unwrap();
        let mut show = Packet::of_adapter(Verb::Show, 1, 0);
        show.part.key = 2;
        let of_words = words.file().try_clone().unwrap().into();
        let liveness = words.liveness().try_clone_to_owned().unwrap();
        ask(it, &show, &[], vec![fd, of_words, liveness]).unwrap();
        Self { words, loan }
    }

    fn payload(&self, ranges: &[LentRange]) -> Vec<u8> {
        let part = LentPart {
            word: (2, self.loan.id()),
            ranges: ranges.to_vec(),
        };
        part.encode()
    }
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
fn reader_that_gives_nothing_back_has_as_many_loans_as_it_may() {
    let (mut it, post) = two(Operation::RdmaRead);
    let (key, ..) = post.remote;
    let mut lent = 0;
    for _ in 0..600 {
        let read = lent_packet(&it, Verb::Read, key, 4096);
        // The first waits until the reader has said that it knows the file.
        let answer = ask(&mut it, &read, &[], vec![]);
        while let Some((_, arrival)) = it.air.flying.lock().pop() {
            arrival.reply.unwrap()(vec![0]);
        }
        it.far.work();
        match answer.as_deref().map(decode_answer) {
            None | Some(Ok(_)) => lent += 1,
            Some(refused) => assert_eq!(refused, Err(Refusal::LoanOver)),
        }
    }
    assert_eq!((lent, it.far.path.objects().loan_count()), (512, 512));
    it.far.now += Duration::from_secs(29);
    it.far.work();
    assert_eq!(it.far.path.objects().loan_count(), 512);
    it.far.now += Duration::from_secs(2);
    it.far.work();
    assert_eq!(it.far.path.objects().loan_count(), 0);
}

#[test]
fn reader_that_leaves_has_no_loans() {
    let (mut it, post) = two(Operation::RdmaRead);
    it.send(&post);
    work_until(&mut it, Verb::Return);
    assert_eq!(it.far.path.objects().loan_count(), 1);
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
    assert_eq!(decode_answer(&answer), Err(Refusal::LoanOver));
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
        let lender = HostileLender::new(&mut it, fd);
        let bytes = ranges.iter().map(|(_, _, bytes)| bytes).sum();
        let list: Vec<LentRange> = ranges
            .iter()
            .map(|(file, offset, bytes)| LentRange::new(*file, *offset, *bytes))
            .collect();
        let write = lent_packet(&it, Verb::Write, key, bytes);
        let answer = ask(&mut it, &write, &lender.payload(&list), vec![]).unwrap();
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
    let viewers = it.near.worker.state.lending.viewer_count();
    assert!((1..=256).contains(&viewers), "{viewers}");
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
}

#[test]
fn write_reads_nothing_of_memory_after_its_unmap() {
    let mut it = flying(Operation::RdmaWrite);
    it.near.requester.unmap(PAYLOAD, PAYLOAD + 0xfff);
    // The guest gives the page to another owner.
    it.near.ram.write(PAYLOAD, &[0x5e; 0x1000]).unwrap();
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    assert!(!it.far.bytes(TO, 0x1000).contains(&0x5e));
}

#[test]
fn read_gets_nothing_of_memory_after_its_unmap() {
    let mut it = flying(Operation::RdmaRead);
    // Until the answer with the ranges is there, and not yet copied.
    for _ in 0..100 {
        while it.deliver() {}
        let loans = it.far.path.objects().loan_count();
        if loans == 1 {
            break;
        }
        it.far.work();
        if it.far.path.objects().loan_count() == 1 {
            break;
        }
        while it.deliver() {}
        it.near.work();
    }
    assert_eq!(it.far.path.objects().loan_count(), 1);
    it.far.requester.unmap(TO, TO + 0xfff);
    it.far.ram.write(TO, &[0x5e; 0x1000]).unwrap();
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::RemoteBadAddress);
    assert!(!it.near.bytes(PAYLOAD, 0x1000).contains(&0x5e));
}

#[test]
fn read_is_answered_though_the_wire_was_busy_for_the_file() {
    let mut it = flying(Operation::RdmaRead);
    while it.deliver() {}
    *it.air.limit.lock() = Some(0);
    it.far.work();
    *it.air.limit.lock() = None;
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
}

#[test]
fn failed_read_gives_its_loan_back() {
    let mut it = flying(Operation::RdmaRead);
    it.near.requester.unmap(PAYLOAD, PAYLOAD + 0xfff);
    let before = it.far.now;
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    assert_eq!(it.far.path.objects().loan_count(), 0);
    let waited = it.far.now - before;
    assert!(
        waited < Duration::from_secs(1),
        "{waited:?} until it ended by itself"
    );
}

#[test]
fn file_on_a_disk_is_not_taken() {
    let (mut it, post) = two(Operation::RdmaWrite);
    let (key, ..) = post.remote;
    // On a file system with a block device.
    let path = std::env::current_exe().unwrap();
    let fd = std::fs::File::open(path).unwrap().into();
    let lender = HostileLender::new(&mut it, fd);
    let write = lent_packet(&it, Verb::Write, key, 4096);
    let payload = lender.payload(&[LentRange::new(1, 0, 4096)]);
    let answer = ask(&mut it, &write, &payload, vec![]).unwrap();
    assert_eq!(decode_answer(&answer), Err(Refusal::NotLent));
}

#[test]
fn lender_that_writes_to_its_word_fails_its_own_write_alone() {
    let (mut it, post) = two(Operation::RdmaWrite);
    let (key, ..) = post.remote;
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 4096).unwrap();
    rustix::io::pwrite(&fd, &[7; 4096], 0).unwrap();
    let lender = HostileLender::new(&mut it, fd);
    let payload = lender.payload(&[LentRange::new(1, 0, 4096)]);
    let write = lent_packet(&it, Verb::Write, key, 4096);
    for value in [0, 2, 3, 4, u32::MAX] {
        rustix::io::pwrite(
            lender.words.file(),
            &[value.to_ne_bytes(); 1024].concat(),
            0,
        )
        .unwrap();
        let answer = ask(&mut it, &write, &payload, vec![]).unwrap();
        assert_eq!(decode_answer(&answer), Err(Refusal::LoanOver), "{value}");
    }
    assert_eq!(it.far.bytes(TO, 4096), [0; 4096]);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
}

/// The loan of a write that flies to the far adapter.
fn flying_loan(it: &mut Two) -> BorrowedLoan {
    work_until(it, Verb::Write);
    let flying = it.air.flying.lock();
    let [(_, arrival)] = &flying[..] else {
        panic!("{} fly", flying.len());
    };
    let (packet, payload) = Packet::decode(&arrival.data).unwrap();
    let lent = LentPart::decode(payload, packet.part.bytes).unwrap();
    drop(flying);
    let lending = &mut it.far.worker.state.lending;
    let (loan, _) = lending.borrowed(A, &lent).unwrap();
    loan
}

/// The same operation with one page, the second one of the near region.
fn of_second_page(post: Post) -> Post {
    let (key, ..) = post.local[0];
    Post {
        local: vec![(key, PAYLOAD + 0x1000, 4096)],
        remote: (post.remote.0, TO, 4096),
        ..post
    }
}

#[test]
fn adapter_whose_copy_hangs_gets_packets_for_a_while() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    let loan = flying_loan(&mut it);
    let copying = loan.begin().unwrap();
    it.near.requester.unmap(PAYLOAD, PAYLOAD + 0xfff);
    assert!(!copying.finish());
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    let post = of_second_page(post);
    let packets = it.near.path.statistics().packet_bytes;
    it.near.now += Duration::from_secs(5);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    let statistics = it.near.path.statistics();
    assert_eq!(
        (statistics.packet_bytes - packets, statistics.lent_bytes),
        (4096, 0)
    );
    it.near.now += Duration::from_secs(60);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.near.path.statistics().lent_bytes, 4096);
}

#[test]
fn adapter_that_hung_is_lent_nothing_when_it_is_back() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    let loan = flying_loan(&mut it);
    let copying = loan.begin().unwrap();
    // It leaves, and comes back by the same GID, while its copy goes on.
    it.near.path.mailbox.note_gone(Some(B));
    it.near.work();
    it.near.requester.unmap(PAYLOAD, PAYLOAD + 0xfff);
    assert!(!copying.finish());
    it.work();
    let done = it.near.one(&mut it.a);
    assert_eq!(done.status, CompletionStatus::LocalInvalidKey);
    let post = of_second_page(post);
    it.near.now += Duration::from_secs(5);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.near.path.statistics().lent_bytes, 0);
}

#[test]
fn reader_that_answers_amid_its_copy_hangs_and_moves_nothing() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.send(&post);
    let loan = flying_loan(&mut it);
    let copying = loan.begin().unwrap();
    let (_, arrival) = it.air.flying.lock().pop().unwrap();
    arrival.reply.unwrap()(vec![0]);
    it.near.work();
    assert!(!copying.finish());
    it.work();
    assert_eq!(it.near.one(&mut it.a).status, CompletionStatus::Ok);
    let statistics = it.near.path.statistics();
    let length = u64::from(LENGTH);
    assert_eq!(
        (statistics.packet_bytes, statistics.lent_bytes),
        (length, 0)
    );
}

/// Memory of the near adapter in as many files of a page each: its region, at the address.
fn region_of_files(it: &Adapter, address: u64, files: u64) -> RegionKeys {
    for index in 0..files {
        let fd = memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let mapped = it.requester.map(
            address + index * 4096,
            4096,
            MapAccess::READ_WRITE,
            Some((fd, 0)),
        );
        mapped.unwrap();
    }
    it.region(address, files * 4096)
}

#[test]
fn transfer_of_more_files_than_are_kept_ends_in_packets() {
    const LENT: u64 = 0x4000_0000;

    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        for (files, is_lent) in [(16, true), (17, false)] {
            let mut it = Two::lending();
            let bytes = u32::try_from(files * 4096).unwrap();
            let (near, far) = match operation {
                Operation::RdmaRead => (
                    it.near.region(PAYLOAD, bytes.into()),
                    region_of_files(&it.far, LENT, files),
                ),
                _ => (
                    region_of_files(&it.near, LENT, files),
                    it.far.region(TO, bytes.into()),
                ),
            };
            let (from, to) = match operation {
                Operation::RdmaRead => (PAYLOAD, LENT),
                _ => (LENT, TO),
            };
            let post = it.rdma(
                operation,
                (near.local, from, bytes),
                (far.remote, to, bytes),
            );
            assert_eq!(it.done(&post).status, CompletionStatus::Ok);
            let lender = match operation {
                Operation::RdmaRead => &it.far,
                _ => &it.near,
            };
            let in_packets = lender.path.statistics().packet_bytes;
            assert_eq!(in_packets == 0, is_lent, "{operation:?} of {files} files");
        }
    }
}

#[test]
fn lender_of_more_files_than_are_kept_sends_no_packets() {
    const LENT: u64 = 0x4000_0000;
    const FILES: u64 = 20;

    let mut it = Two::lending();
    let far = it.far.region(TO, 4096);
    let near: Vec<_> = (0..FILES)
        .map(|index| {
            let fd = memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, 4096).unwrap();
            let address = LENT + index * 4096;
            let mapped = it
                .near
                .requester
                .map(address, 4096, MapAccess::READ_WRITE, Some((fd, 0)));
            mapped.unwrap();
            (it.near.region(address, 4096).local, address, 4096)
        })
        .collect();
    for local in near.iter().chain(&near) {
        let post = it.rdma(Operation::RdmaWrite, *local, (far.remote, TO, 4096));
        assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    }
    let statistics = it.near.path.statistics();
    let bytes = 2 * FILES * 4096;
    assert_eq!((statistics.packet_bytes, statistics.lent_bytes), (0, bytes));
}

#[test]
fn files_without_a_number_left_go_in_packets() {
    let (mut it, post) = two(Operation::RdmaWrite);
    it.near.worker.state.lending.last_number = u32::MAX;
    let data = it.near.fill(PAYLOAD, LENGTH as usize, 9);
    assert_eq!(it.done(&post).status, CompletionStatus::Ok);
    assert_eq!(it.far.bytes(TO, LENGTH as usize), data);
    assert_eq!(it.near.path.statistics().lent_bytes, 0);
}

/// What a switch lends of a GPU's memory, with the GPU's leases.
#[test]
fn write_reads_nothing_of_a_window_that_its_owner_closed() {
    const WINDOW: u64 = 0x4000_0000;
    const BYTES: u32 = 8192;

    for is_closed in [false, true] {
        let mut it = Two::lending();
        let leases = Leases::new().unwrap();
        let vram = MemoryFile::create("vram", BYTES.into()).unwrap();
        let requester = &it.near.requester;
        let words = leases.file().try_clone().unwrap().into();
        let lease = requester.borrow_leases(words).unwrap();
        let lease = lease.lease(2, leases.generation(2));
        let fd = vram.file().try_clone().unwrap().into();
        let span = requester.borrow_window(PeerId(1), lease, fd, (0, BYTES.into()));
        let window = PeerWindow {
            address: WINDOW,
            size: BYTES.into(),
            claim: 0,
            memory: PeerMemory::Span(span.unwrap()),
        };
        requester.set_peer(PeerId(1), vec![window]);
        let (near, far) = (
            it.near.region(WINDOW, BYTES.into()),
            it.far.region(TO, BYTES.into()),
        );
        let (local, remote) = ((near.local, WINDOW, BYTES), (far.remote, TO, BYTES));
        let post = it.rdma(Operation::RdmaWrite, local, remote);
        it.send(&post);
        work_until(&mut it, Verb::Write);
        if is_closed {
            // The lender does not know yet, or is stopped. The memory has its next owner.
            leases.end(2);
        }
        vram.write(0, &[0x5e; BYTES as usize]).unwrap();
        it.work();
        let done = it.near.one(&mut it.a);
        let is_copied = it.far.bytes(TO, BYTES as usize).contains(&0x5e);
        assert_eq!(is_copied, !is_closed);
        assert_eq!(done.status == CompletionStatus::Ok, !is_closed);
        let lent = if is_closed { 0 } else { u64::from(BYTES) };
        assert_eq!(it.near.path.statistics().lent_bytes, lent);
    }
}
