//! Counters of the adapter, as a guest compares them with its completions.

use peerbar_efa_spec::completion::CompletionStatus as S;
use peerbar_efa_spec::work::Operation;

use super::fixture::{Adapter, PAYLOAD, Post};
use crate::objects::QueuePairKind;

const TO: u64 = PAYLOAD + (1 << 20);

#[test]
fn reads_are_counted_as_packets_of_both_sides() {
    let mut adapter = Adapter::new();
    let (mut a, b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    let post = Post::rdma(
        Operation::RdmaRead,
        &b,
        handle,
        (keys.local, PAYLOAD, 4096),
        (keys.remote, TO, 4096),
    );
    adapter.send(&mut a, &post);
    adapter.work();
    assert_eq!(adapter.statuses(&mut a), [(0, S::Ok)]);
    let now = adapter.path.statistics();
    assert_eq!(
        (now.sent_bytes, now.received_bytes),
        (4096, 4096),
        "{now:?}"
    );
}

#[test]
fn message_that_arrives_at_last_is_not_dropped() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    adapter.send(
        &mut a,
        &Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]),
    );
    let wait = adapter.work().unwrap();
    adapter.now += wait;
    adapter.receive(&mut b, 1, &[(keys.local, TO, 64)]);
    adapter.work();
    assert_eq!(adapter.statuses(&mut a), [(0, S::Ok)]);
    let now = adapter.path.statistics();
    assert_eq!((now.receives, now.dropped), (1, 0), "{now:?}");
}

#[test]
fn datagram_that_is_lost_was_sent() {
    let mut adapter = Adapter::new();
    let mut a = adapter.pair(QueuePairKind::Datagram);
    let b = adapter.pair(QueuePairKind::Datagram);
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    adapter.send(
        &mut a,
        &Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]),
    );
    adapter.work();
    assert_eq!(adapter.statuses(&mut a), [(0, S::Ok)]);
    let now = adapter.path.statistics();
    assert_eq!(
        (now.sends, now.sent_packets, now.sent_bytes),
        (1, 1, 64),
        "{now:?}"
    );
}

#[test]
fn counters_are_those_of_the_completions_that_were_seen() {
    let mut adapter = Adapter::new();
    let (mut a, b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    let mut stale = 0;
    let worker = adapter.take_worker();
    let thread = std::thread::spawn(|| worker.run());
    for round in 0..2000u64 {
        let post = Post::rdma(
            Operation::RdmaWrite,
            &b,
            handle,
            (keys.local, PAYLOAD, 1),
            (keys.remote, TO, 1),
        );
        adapter.send(&mut a, &post);
        while adapter.poll(&mut a.queue).is_empty() {
            std::hint::spin_loop();
        }
        if adapter.path.statistics().writes != round + 1 {
            stale += 1;
        }
    }
    adapter.path.end();
    thread.join().unwrap();
    assert_eq!(stale, 0, "of 2000 reads of the counters");
}
