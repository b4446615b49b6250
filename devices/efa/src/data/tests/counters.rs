//! Counters of the adapter, as a guest compares them with its completions.

use peerbar_efa_spec::completion::CompletionStatus as S;
use peerbar_efa_spec::work::Operation;

use super::connected::{Connected, TO};
use super::fixture::Adapter;
use crate::objects::QueuePairKind;

#[test]
fn reads_are_counted_as_packets_of_both_sides() {
    let mut it = Connected::new();
    it.post(&it.rdma(Operation::RdmaRead, 4096));
    it.adapter.work();
    assert_eq!(it.statuses(), [(0, S::Ok)]);
    let now = it.adapter.path.statistics();
    assert_eq!(
        (now.sent_bytes, now.received_bytes),
        (4096, 4096),
        "{now:?}"
    );
}

#[test]
fn message_that_arrives_at_last_is_not_dropped() {
    let mut it = Connected::new();
    it.post(&it.message(64));
    let wait = it.adapter.work().unwrap();
    it.adapter.now += wait;
    it.adapter.receive(&mut it.b, 1, &[(it.keys.local, TO, 64)]);
    it.adapter.work();
    assert_eq!(it.statuses(), [(0, S::Ok)]);
    let now = it.adapter.path.statistics();
    assert_eq!((now.receives, now.dropped), (1, 0), "{now:?}");
}

#[test]
fn datagram_that_is_lost_was_sent() {
    let mut adapter = Adapter::new();
    let [a, b] = [QueuePairKind::Datagram; 2].map(|kind| adapter.pair(kind));
    let mut it = Connected::of(adapter, a, b);
    it.post(&it.message(64));
    it.adapter.work();
    assert_eq!(it.statuses(), [(0, S::Ok)]);
    let now = it.adapter.path.statistics();
    assert_eq!(
        (now.sends, now.sent_packets, now.sent_bytes),
        (1, 1, 64),
        "{now:?}"
    );
}

#[test]
fn counters_are_those_of_the_completions_that_were_seen() {
    let mut it = Connected::new();
    let mut stale = 0;
    let worker = it.adapter.take_worker();
    let thread = std::thread::spawn(|| worker.run());
    for round in 0..2000u64 {
        it.post(&it.rdma(Operation::RdmaWrite, 1));
        while it.adapter.poll(&mut it.a.queue).is_empty() {
            std::thread::yield_now();
        }
        if it.adapter.path.statistics().writes != round + 1 {
            stale += 1;
        }
    }
    it.adapter.path.end();
    thread.join().unwrap();
    assert_eq!(stale, 0, "of 2000 reads of the counters");
}
