//! RDMA reads and writes.

use peerbar_dma::Purpose;
use peerbar_efa_spec::completion::{CompletionStatus, QueueType};
use peerbar_efa_spec::work::Operation;
use peerbar_pci::Iova;

use super::fixture::{Adapter, PAYLOAD, Pair, Post};
use crate::objects::{Gid, QueuePairKind, VerbsAccess};

const TO: u64 = PAYLOAD + (4 << 20);
const LONG: usize = (3 << 20) + 17;

fn two(adapter: &mut Adapter) -> (Pair, Pair, u16) {
    (adapter.reliable(), adapter.reliable(), adapter.handle())
}

#[test]
fn long_transfers_move_every_byte_both_ways() {
    for operation in [Operation::RdmaWrite, Operation::RdmaRead] {
        let mut adapter = Adapter::new();
        let (mut a, mut b, handle) = two(&mut adapter);
        let keys = adapter.region(PAYLOAD, 12 << 20);
        let data = adapter.fill(PAYLOAD + 3, LONG, 5);
        let length = u32::try_from(LONG).unwrap();
        let (near, far) = match operation {
            Operation::RdmaRead => (TO + 1, PAYLOAD + 3),
            _ => (PAYLOAD + 3, TO + 1),
        };
        let (local, remote) = ((keys.local, near, length), (keys.remote, far, length));
        let post = Post::rdma(operation, &b, handle, local, remote);
        adapter.send(&mut a, &post.with_id(3));
        adapter.work();
        let done = adapter.one(&mut a);
        assert_eq!((done.status, done.id), (CompletionStatus::Ok, 3));
        assert_eq!(done.operation, operation);
        assert_eq!(
            adapter.poll(&mut b.queue),
            [],
            "the other side sees nothing"
        );
        assert!(adapter.bytes(TO + 1, LONG) == data, "{operation:?}");
        assert_eq!(adapter.bytes(TO, 1), [0]);
        assert_eq!(adapter.bytes(TO + 1 + LONG as u64, 1), [0]);
        let counts = adapter.requester.ledger().counters().snapshot();
        let payload = counts
            .iter()
            .filter(|(kind, _)| kind.purpose == Purpose::Payload);
        let bytes: Vec<_> = payload.map(|(_, count)| count.bytes).collect();
        assert_eq!(bytes, [LONG as u64; 2]);
        let statistics = adapter.path.statistics();
        assert_eq!(statistics.bounced_bytes, 0, "one copy");
        let counted = match operation {
            Operation::RdmaRead => (statistics.read_bytes, statistics.read_response_bytes),
            _ => (statistics.write_bytes, statistics.write_received_bytes),
        };
        assert_eq!(counted, (LONG as u64, LONG as u64));
    }
}

#[test]
fn write_with_immediate_consumes_a_receive_unless_unsolicited() {
    for unsolicited in [false, true] {
        let mut adapter = Adapter::new();
        let mut a = adapter.reliable();
        let queue = adapter.completion_queue(None);
        let kind = QueuePairKind::ReliableDatagram;
        let mut b = adapter.pair_with(kind, queue, 64, unsolicited);
        let handle = adapter.handle();
        let keys = adapter.region(PAYLOAD, 12 << 20);
        let length = 0x0002_0003;
        let data = adapter.fill(PAYLOAD, length as usize, 9);
        if !unsolicited {
            adapter.receive(&mut b, 41, &[(keys.local, PAYLOAD, 0)]);
        }
        let (local, remote) = ((keys.local, PAYLOAD, length), (keys.remote, TO, length));
        let post = Post {
            immediate: Some(6),
            ..Post::rdma(Operation::RdmaWrite, &b, handle, local, remote)
        };
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
        let done = adapter.one(&mut b);
        assert_eq!(
            (done.queue, done.operation),
            (QueueType::Receive, Operation::RdmaWrite)
        );
        assert_eq!((done.bytes, done.immediate), (length, Some(6)));
        let id = if unsolicited { 0 } else { 41 };
        assert_eq!((done.unsolicited, done.id), (unsolicited, id));
        assert!(adapter.bytes(TO, length as usize) == data);
    }
}

#[test]
fn inline_write_arrives_and_empty_transfers_succeed() {
    let mut adapter = Adapter::new();
    let queue = adapter.completion_queue(None);
    let kind = QueuePairKind::ReliableDatagram;
    let mut a = adapter.pair_with(kind, queue, 128, false);
    let b = adapter.reliable();
    let handle = adapter.handle();
    let keys = adapter.region(TO, 4096);
    let inline = Post {
        inline: Some((0..80).collect()),
        ..Post::rdma(
            Operation::RdmaWrite,
            &b,
            handle,
            (0, 0, 0),
            (keys.remote, TO, 80),
        )
    };
    let empty = |operation| Post::rdma(operation, &b, handle, (0, 0, 0), (0, 0, 0));
    adapter.send(&mut a, &inline.with_id(1));
    adapter.send(&mut a, &empty(Operation::RdmaWrite).with_id(2));
    adapter.send(&mut a, &empty(Operation::RdmaRead).with_id(3));
    adapter.work();
    let ok = CompletionStatus::Ok;
    assert_eq!(adapter.statuses(&mut a), [(1, ok), (2, ok), (3, ok)]);
    assert_eq!(adapter.bytes(TO, 80), (0..80).collect::<Vec<u8>>());
}

#[test]
fn access_without_rights_moves_nothing() {
    let mut adapter = Adapter::new();
    let (mut a, b, handle) = two(&mut adapter);
    let all = adapter.region(PAYLOAD, 4096);
    let none = adapter.region_with(TO, 4096, VerbsAccess::default());
    adapter.fill(PAYLOAD, 64, 1);
    adapter.fill(TO, 64, 2);
    let before = (adapter.bytes(PAYLOAD, 64), adapter.bytes(TO, 64));
    let (local, far) = ((all.local, PAYLOAD, 64), (none.remote, TO, 64));
    let (remote, near) = ((all.remote, PAYLOAD, 64), (none.local, TO, 64));
    let bad_address = CompletionStatus::RemoteBadAddress;
    let cases = [
        (Operation::RdmaWrite, local, far, bad_address),
        (Operation::RdmaRead, local, far, bad_address),
        (
            Operation::RdmaRead,
            near,
            remote,
            CompletionStatus::LocalInvalidKey,
        ),
        // Guessed keys, a local key used as a remote one, one byte too many.
        (
            Operation::RdmaRead,
            local,
            (all.remote ^ 1, PAYLOAD, 64),
            bad_address,
        ),
        (
            Operation::RdmaWrite,
            local,
            (all.local, PAYLOAD, 64),
            bad_address,
        ),
        (
            Operation::RdmaWrite,
            local,
            (all.remote, PAYLOAD + 4033, 64),
            bad_address,
        ),
        (
            Operation::RdmaWrite,
            (all.local, PAYLOAD + 4033, 64),
            remote,
            CompletionStatus::LocalInvalidKey,
        ),
    ];
    for (operation, local, remote, status) in cases {
        let post = Post::rdma(operation, &b, handle, local, remote);
        adapter.send(&mut a, &post);
        adapter.work();
        let done = adapter.one(&mut a);
        assert_eq!(done.status, status, "{operation:?} {local:?} {remote:?}");
        assert_eq!((adapter.bytes(PAYLOAD, 64), adapter.bytes(TO, 64)), before);
    }
    let statistics = adapter.path.statistics();
    assert_eq!((statistics.write_errors, statistics.read_errors), (4, 3));
}

#[test]
fn long_transfer_that_does_not_fit_moves_nothing() {
    let mut adapter = Adapter::new();
    let (mut a, b, handle) = two(&mut adapter);
    let from = adapter.region(PAYLOAD, 2 << 20);
    let to = adapter.region(TO, (2 << 20) - 1);
    adapter.fill(PAYLOAD, 2 << 20, 1);
    let length = 2 << 20;
    let (local, remote) = ((from.local, PAYLOAD, length), (to.remote, TO, length));
    let post = Post::rdma(Operation::RdmaWrite, &b, handle, local, remote);
    adapter.send(&mut a, &post);
    let (local, remote) = ((to.local, TO, length), (from.remote, PAYLOAD, length));
    let post = Post::rdma(Operation::RdmaRead, &b, handle, local, remote);
    adapter.send(&mut a, &post.with_id(1));
    adapter.work();
    assert_eq!(
        adapter.statuses(&mut a),
        [
            (0, CompletionStatus::RemoteBadAddress),
            (1, CompletionStatus::LocalInvalidKey)
        ]
    );
    assert_eq!(adapter.bytes(TO, 64), [0; 64]);
}

#[test]
fn freed_region_ends_a_transfer_that_is_in_progress() {
    let mut adapter = Adapter::new();
    let (mut a, b, handle) = two(&mut adapter);
    let from = adapter.region(PAYLOAD, 2 << 20);
    let to = adapter.region(TO, 2 << 20);
    adapter.fill(PAYLOAD, 2 << 20, 1);
    let length = 2 << 20;
    let (local, remote) = ((from.local, PAYLOAD, length), (to.remote, TO, length));
    let post = Post::rdma(Operation::RdmaWrite, &b, handle, local, remote);
    adapter.send(&mut a, &post);
    adapter.worker.turn(adapter.now);
    assert_ne!(adapter.bytes(TO, 64), [0; 64], "it has begun");
    adapter.path.objects().deregister_region(to.local).unwrap();
    let end = TO + u64::from(length) - 64;
    adapter.work();
    assert_eq!(
        adapter.one(&mut a).status,
        CompletionStatus::RemoteBadAddress
    );
    assert_eq!(adapter.bytes(end, 64), [0; 64]);
}

#[test]
fn rdma_takes_an_address_handle_on_both_sides() {
    let mut adapter = Adapter::new();
    let mut a = adapter.reliable();
    let handle = adapter.handle();
    let from = adapter.region(PAYLOAD, 4096);
    adapter.domain = adapter.path.objects().create_protection_domain().unwrap();
    let b = adapter.reliable();
    let to = adapter.region(TO, 4096);
    let (local, remote) = ((from.local, PAYLOAD, 64), (to.remote, TO, 64));
    let post = Post::rdma(Operation::RdmaWrite, &b, handle, local, remote);
    adapter.send(&mut a, &post);
    adapter.work();
    assert_eq!(
        adapter.one(&mut a).status,
        CompletionStatus::RemoteUnknownPeer
    );
    adapter.handle_to(Gid([1; 16]));
    adapter.handle();
    adapter.send(&mut a, &post);
    adapter.work();
    assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
}

#[test]
fn memory_that_is_not_mapped_here_goes_by_a_buffer() {
    for (operation, is_near) in [
        (Operation::RdmaWrite, true),
        (Operation::RdmaWrite, false),
        (Operation::RdmaRead, true),
        (Operation::RdmaRead, false),
    ] {
        let mut adapter = Adapter::new();
        let (mut a, b, handle) = two(&mut adapter);
        let asked = adapter.asked_memory();
        let there = adapter.region(PAYLOAD, 1 << 20);
        let elsewhere = adapter.region(asked, 1 << 20);
        let length: u32 = 300_000;
        let (near, far) = if is_near {
            (
                (elsewhere.local, asked, length),
                (there.remote, PAYLOAD, length),
            )
        } else {
            (
                (there.local, PAYLOAD, length),
                (elsewhere.remote, asked, length),
            )
        };
        let is_read = operation == Operation::RdmaRead;
        let (from, to) = match is_read {
            true => (far.1, near.1),
            false => (near.1, far.1),
        };
        let data: Vec<u8> = (0..length).map(|at| (at % 241).to_le_bytes()[0]).collect();
        let write = |at| adapter.requester.write(Purpose::Control, at, &data);
        write(Iova(from)).unwrap();
        let post = Post::rdma(operation, &b, handle, near, far);
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
        let mut back = vec![0; data.len()];
        adapter
            .requester
            .read(Purpose::Control, Iova(to), &mut back)
            .unwrap();
        assert!(back == data, "{operation:?} {is_near}");
        assert_eq!(adapter.path.statistics().bounced_bytes, u64::from(length));
    }
}
