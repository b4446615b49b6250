//! Messages without a receive, the order of work requests, and turns of queue pairs.

use std::time::Duration;

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;

use super::fixture::{Adapter, PAYLOAD, Post};
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::objects::{CreateCompletionQueue, CreateQueuePair, QueuePairKind};

const TO: u64 = PAYLOAD + (4 << 20);

fn inline(to: &super::fixture::Pair, handle: u16, data: u8) -> Post {
    Post {
        inline: Some(vec![data]),
        ..Post::send(to, handle, &[])
    }
}

#[test]
fn message_waits_for_a_receive_as_often_as_its_pair_says() {
    for retries in [0, 1, 6] {
        let mut adapter = Adapter::new();
        let (mut a, b) = (adapter.reliable(), adapter.reliable());
        let handle = adapter.handle();
        adapter.set_rnr_retry(a.number, retries);
        adapter.send(&mut a, &inline(&b, handle, 1));
        for _ in 0..retries {
            let wait = adapter.work().unwrap();
            assert!(wait > Duration::ZERO);
            adapter.now += wait;
            assert_eq!(adapter.poll(&mut a.queue), []);
        }
        assert_eq!(adapter.work(), None);
        assert_eq!(adapter.one(&mut a).status, CompletionStatus::RemoteNotReady);
    }
}

#[test]
fn message_that_waits_arrives_once_there_is_a_receive() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(TO, 4096);
    adapter.set_rnr_retry(a.number, 7);
    adapter.send(&mut a, &inline(&b, handle, 42));
    for _ in 0..50 {
        let wait = adapter.work().unwrap();
        adapter.now += wait;
    }
    adapter.receive(&mut b, 1, &[(keys.local, TO, 1)]);
    adapter.work();
    assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
    assert_eq!(adapter.bytes(TO, 1), [42]);
}

#[test]
fn message_that_waits_holds_up_no_other() {
    let mut adapter = Adapter::new();
    let (mut a, b) = (adapter.reliable(), adapter.reliable());
    let mut c = adapter.reliable();
    let handle = adapter.handle();
    let keys = adapter.region(TO, 4096);
    adapter.set_rnr_retry(a.number, 7);
    adapter.receive(&mut c, 1, &[(keys.local, TO, 1)]);
    adapter.send(&mut a, &inline(&b, handle, 1).with_id(1));
    adapter.send(&mut a, &inline(&c, handle, 2).with_id(2));
    adapter.work();
    assert_eq!(adapter.statuses(&mut a), [(2, CompletionStatus::Ok)]);
}

#[test]
fn without_a_seed_work_requests_complete_in_order() {
    assert_eq!(order_of(None), (0..12).collect::<Vec<_>>());
}

#[test]
fn seed_decides_the_order_and_each_request_runs_once() {
    let first = order_of(Some(1));
    assert_eq!(order_of(Some(1)), first, "it can be repeated");
    assert_ne!(first, (0..12).collect::<Vec<_>>());
    assert_ne!(order_of(Some(2)), first);
    let mut sorted = first;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..12).collect::<Vec<_>>());
}

/// Returns the order in which twelve sends arrive.
fn order_of(seed: Option<u64>) -> Vec<u8> {
    let mut adapter = Adapter::with_seed(seed);
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(TO, 4096);
    for number in 0..12 {
        adapter.receive(&mut b, 0, &[(keys.local, TO + u64::from(number), 1)]);
        adapter.send(&mut a, &inline(&b, handle, number));
    }
    adapter.work();
    adapter.bytes(TO, 12)
}

#[test]
fn long_transfer_leaves_turns_to_other_pairs() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let mut c = adapter.reliable();
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 12 << 20);
    let length = 4 << 20;
    let (local, remote) = ((keys.local, PAYLOAD, length), (keys.remote, TO, length));
    let long = Post::rdma(Operation::RdmaWrite, &b, handle, local, remote);
    adapter.send(&mut a, &long);
    adapter.worker.turn(adapter.now);
    adapter.receive(&mut b, 1, &[(keys.local, PAYLOAD, 1)]);
    adapter.send(&mut c, &inline(&b, handle, 1));
    for _ in 0..4 {
        adapter.worker.turn(adapter.now);
    }
    assert_eq!(adapter.statuses(&mut c), [(0, CompletionStatus::Ok)]);
    assert_eq!(adapter.poll(&mut a.queue), [], "it is still in progress");
    adapter.work();
    assert_eq!(adapter.statuses(&mut a), [(0, CompletionStatus::Ok)]);
}

#[test]
fn bad_requests_leave_turns_to_others() {
    let mut adapter = Adapter::new();
    let entries = 2048u32;
    let create = CreateCompletionQueue {
        uar: adapter.uar,
        entries: 4096,
        entry_bytes: 32,
        address: 4 << 20,
        event_queue: None,
        with_source_address: false,
    };
    let cq = adapter
        .path
        .objects()
        .create_completion_queue(create)
        .unwrap();
    let create = CreateQueuePair {
        kind: QueuePairKind::ReliableDatagram,
        protection_domain: adapter.domain,
        uar: adapter.uar,
        send_completions: cq.into(),
        receive_completions: cq.into(),
        send_entries: entries,
        send_bytes: entries * 64,
        receive_address: 0,
        receive_bytes: 0,
        unsolicited_writes: false,
    };
    let number = adapter.path.objects().create_queue_pair(create).unwrap();
    adapter.make_ready(number);
    // All entries are zeros, which is not a valid request.
    adapter.ring(Doorbell::Send(number % limits::QUEUE_PAIRS), 2048);
    adapter.worker.turn(adapter.now);
    let mut done = 0;
    for at in 0..2048u64 {
        let mut entry = [0; 32];
        adapter.ram.read((4 << 20) + at * 32, &mut entry).unwrap();
        done += u32::from(entry[3] & 1);
    }
    assert!(done <= 64, "{done} requests in one turn");
}

#[test]
fn bad_request_does_not_wait_for_a_peer_without_receive() {
    let mut adapter = Adapter::new();
    let (mut a, b) = (adapter.reliable(), adapter.reliable());
    let mut c = adapter.reliable();
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 8 << 20);
    adapter.set_rnr_retry(a.number, 7);
    adapter.receive(&mut c, 1, &[(keys.local, TO, 64)]);
    adapter.send(
        &mut a,
        &Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]).with_id(1),
    );
    adapter.send(
        &mut a,
        &Post::send(&c, handle, &[(keys.local, PAYLOAD, 9000)]).with_id(2),
    );
    adapter.send(
        &mut a,
        &Post::send(&c, handle, &[(keys.local, PAYLOAD, 64)]).with_id(3),
    );
    for _ in 0..200 {
        let Some(wait) = adapter.work() else { break };
        adapter.now += wait;
    }
    let got = adapter.statuses(&mut a);
    assert_eq!(
        got,
        [
            (2, CompletionStatus::LocalBadLength),
            (3, CompletionStatus::Ok)
        ],
        "after 200 retries"
    );
}
