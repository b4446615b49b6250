//! Work requests, queues and memory that are invalid, or become so.

use peerbar_efa_spec::completion::{CompletionStatus, QueueType};
use peerbar_efa_spec::work::{Operation, ReceiveDescriptor, ReceiveKey};
use proptest::prelude::*;
use zerocopy::little_endian::{U16, U64};

use super::fixture::{Adapter, ENTRIES, PAYLOAD, Pair, Post, QKEY, RAM, VIRTUAL, entry};
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::objects::{CreateQueuePair, Gid, QueuePairKind, QueuePairState};
use crate::work::request::{Data, WorkRequest};

const TO: u64 = PAYLOAD + (1 << 20);

#[test]
fn each_wrong_send_has_its_status_and_the_next_succeeds() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let datagrams = adapter.pair(QueuePairKind::Datagram);
    let idle = adapter.reliable();
    adapter.set_state(idle.number, QueuePairState::Error);
    let handle = adapter.handle();
    let elsewhere = adapter.handle_to(Gid([7; 16]));
    let keys = adapter.region(PAYLOAD, 2 << 20);
    let good = Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]);
    let local = |key, at, length| Post {
        local: vec![(key, at, length)],
        ..good.clone()
    };
    use CompletionStatus as S;
    let cases = [
        (
            Post {
                handle: handle + 9,
                ..good.clone()
            },
            S::LocalInvalidAddressHandle,
        ),
        (
            Post {
                handle: elsewhere,
                ..good.clone()
            },
            S::LocalUnreachableRemote,
        ),
        (local(keys.local ^ 1, PAYLOAD, 64), S::LocalInvalidKey),
        (local(keys.local, PAYLOAD - 1, 64), S::LocalInvalidKey),
        (
            local(keys.local, u64::MAX - VIRTUAL - 5, 64),
            S::LocalInvalidKey,
        ),
        (local(keys.local, PAYLOAD, 9000), S::LocalBadLength),
        (
            Post {
                to: b.number ^ 0x100,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
        (
            Post {
                to: datagrams.number,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
        (
            Post {
                to: idle.number,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
        (
            Post {
                qkey: QKEY + 1,
                ..good.clone()
            },
            S::RemoteBadQueuePair,
        ),
    ];
    for (post, status) in cases {
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(adapter.one(&mut a).status, status, "{post:?}");
        assert_eq!(adapter.poll(&mut b.queue), []);
        adapter.receive(&mut b, 4, &[(keys.local, TO, 64)]);
        adapter.send(&mut a, &good);
        adapter.work();
        assert_eq!(adapter.statuses(&mut a), [(0, S::Ok)]);
        assert_eq!(adapter.statuses(&mut b), [(4, S::Ok)]);
    }
}

#[test]
fn rdma_on_datagrams_and_unknown_operations_are_refused() {
    let mut adapter = Adapter::new();
    let kind = QueuePairKind::Datagram;
    let (mut a, b) = (adapter.pair(kind), adapter.pair(kind));
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 4096);
    let (local, remote) = ((keys.local, PAYLOAD, 8), (keys.remote, PAYLOAD + 8, 8));
    let read = Post::rdma(Operation::RdmaRead, &b, handle, local, remote);
    adapter.send(&mut a, &read.clone().with_id(1));
    for (at, value) in [(2, 0x83), (2, 0x40), (2, 0x00), (3, 0x10)] {
        let mut bytes = entry(&read.clone().with_id(2), 64);
        bytes[at] = value;
        adapter.write_entry(&mut a, &bytes);
    }
    adapter.work();
    let refused = CompletionStatus::LocalUnsupportedOperation;
    let statuses = adapter.statuses(&mut a);
    assert_eq!(
        statuses,
        [
            (1, refused),
            (2, refused),
            (2, refused),
            (2, refused),
            (2, refused)
        ]
    );
}

#[test]
fn receive_without_the_right_to_write_fails_on_both_sides() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 4096);
    let read_only = adapter.region_with(TO, 4096, crate::objects::VerbsAccess::default());
    adapter.receive(&mut b, 1, &[(read_only.local, TO, 64)]);
    adapter.receive(&mut b, 2, &[(keys.local ^ 5, PAYLOAD, 64)]);
    let post = Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]);
    adapter.send(&mut a, &post);
    adapter.send(&mut a, &post);
    adapter.work();
    let (near, far) = (
        CompletionStatus::LocalInvalidKey,
        CompletionStatus::RemoteBadStatus,
    );
    assert_eq!(adapter.statuses(&mut a), [(0, far), (0, far)]);
    assert_eq!(adapter.statuses(&mut b), [(1, near), (2, near)]);
    assert_eq!(adapter.bytes(TO, 64), [0; 64]);
}

#[test]
fn memory_that_is_gone_is_an_error_of_its_side() {
    for (operation, is_local, status) in [
        (
            Operation::RdmaWrite,
            true,
            CompletionStatus::LocalInvalidKey,
        ),
        (
            Operation::RdmaWrite,
            false,
            CompletionStatus::RemoteBadAddress,
        ),
        (Operation::RdmaRead, true, CompletionStatus::LocalInvalidKey),
        (
            Operation::RdmaRead,
            false,
            CompletionStatus::RemoteBadAddress,
        ),
        (Operation::Send, true, CompletionStatus::LocalInvalidKey),
    ] {
        let mut adapter = Adapter::new();
        let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
        let handle = adapter.handle();
        // Bus addresses behind RAM: no DMA succeeds there.
        let gone = adapter.region(RAM, 4096);
        let there = adapter.region(PAYLOAD, 4096);
        let (near, far) = if is_local {
            ((gone.local, RAM, 64), (there.remote, PAYLOAD, 64))
        } else {
            ((there.local, PAYLOAD, 64), (gone.remote, RAM, 64))
        };
        adapter.receive(&mut b, 1, &[(there.local, PAYLOAD, 64)]);
        let post = Post::rdma(operation, &b, handle, near, far);
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(
            adapter.one(&mut a).status,
            status,
            "{operation:?} {is_local}"
        );
        assert_eq!(adapter.poll(&mut b.queue), []);
    }
}

#[test]
fn while_no_dma_is_permitted_nothing_succeeds() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 4096);
    adapter.receive(&mut b, 1, &[(keys.local, PAYLOAD, 64)]);
    drop(adapter.requester.halt());
    let post = Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]);
    adapter.send(&mut a, &post);
    adapter.work();
    adapter.requester.resume();
    adapter.work();
    assert_eq!(
        adapter.poll(&mut a.queue),
        [],
        "its completion was lost, too"
    );
    let state = |number| {
        adapter
            .path
            .objects()
            .query_queue_pair(number)
            .unwrap()
            .state
    };
    assert_eq!(state(a.number), QueuePairState::Error);
    assert_eq!(adapter.path.statistics().sends, 0);
}

#[test]
fn doorbell_of_more_than_the_queue_has_puts_the_pair_in_error() {
    let mut adapter = Adapter::new();
    let (a, mut b) = (adapter.reliable(), adapter.reliable());
    let keys = adapter.region(PAYLOAD, 4096);
    adapter.receive(&mut b, 1, &[(keys.local, PAYLOAD, 64)]);
    let slot = |number: u16| number % limits::QUEUE_PAIRS;
    adapter.ring(Doorbell::Send(slot(a.number)), ENTRIES + 1);
    adapter.work();
    let state = |adapter: &Adapter, number| {
        adapter
            .path
            .objects()
            .query_queue_pair(number)
            .unwrap()
            .state
    };
    assert_eq!(state(&adapter, a.number), QueuePairState::Error);
    assert_eq!(state(&adapter, b.number), QueuePairState::ReadyToSend);
    adapter.ring(Doorbell::Send(slot(b.number)), u16::MAX);
    adapter.work();
    assert_eq!(state(&adapter, b.number), QueuePairState::Error);
    let flushed = CompletionStatus::Flushed;
    assert_eq!(
        adapter.statuses(&mut b),
        [(1, flushed)],
        "its receive is flushed"
    );
}

#[test]
fn receive_queue_that_makes_no_sense_fails_its_pair() {
    let descriptor = |first, last| ReceiveDescriptor {
        address: U64::new(PAYLOAD + VIRTUAL),
        req_id: U16::new(1),
        length: U16::new(64),
        key: ReceiveKey::new().with_first(first).with_last(last),
    };
    let many = [(true, false), (false, false), (false, true)];
    let cases: [&[(bool, bool)]; 4] = [
        &[(false, true)],
        &[(true, false)],
        &[(true, false), (true, true)],
        &many,
    ];
    for flags in cases {
        let mut adapter = Adapter::new();
        let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
        let handle = adapter.handle();
        for (first, last) in flags {
            adapter.write_descriptor(&mut b, descriptor(*first, *last));
        }
        let slot = b.number % limits::QUEUE_PAIRS;
        adapter.ring(Doorbell::Receive(slot), u16::try_from(flags.len()).unwrap());
        let post = Post {
            inline: Some(vec![1]),
            ..Post::send(&b, handle, &[])
        };
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(
            adapter.one(&mut a).status,
            CompletionStatus::RemoteBadStatus
        );
        let state = adapter
            .path
            .objects()
            .query_queue_pair(b.number)
            .unwrap()
            .state;
        assert_eq!(state, QueuePairState::Error, "{flags:?}");
    }
}

#[test]
fn what_is_posted_on_a_pair_in_error_is_flushed() {
    let mut adapter = Adapter::new();
    let (mut a, b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 4096);
    adapter.set_rnr_retry(a.number, 7);
    let post = Post::send(&b, handle, &[(keys.local, PAYLOAD, 64)]);
    for id in 0..3 {
        adapter.send(&mut a, &post.clone().with_id(id));
    }
    adapter.receive(&mut a, 10, &[(keys.local, PAYLOAD, 64)]);
    adapter.receive(
        &mut a,
        11,
        &[(keys.local, PAYLOAD, 8), (keys.local, PAYLOAD, 8)],
    );
    assert!(adapter.work().is_some(), "they wait for a receive");
    assert_eq!(adapter.poll(&mut a.queue), []);
    adapter.set_state(a.number, QueuePairState::Error);
    assert_eq!(adapter.work(), None);
    let completions = adapter.poll(&mut a.queue);
    let ids = |queue| -> Vec<u16> {
        let of = completions.iter().filter(|it| it.queue == queue);
        of.map(|it| it.id).collect()
    };
    assert_eq!(ids(QueueType::Send), [0, 1, 2]);
    assert_eq!(ids(QueueType::Receive), [10, 11]);
    assert!(
        completions
            .iter()
            .all(|it| it.status == CompletionStatus::Flushed)
    );
    adapter.send(&mut a, &post.clone().with_id(3));
    adapter.receive(&mut a, 12, &[(keys.local, PAYLOAD, 64)]);
    adapter.work();
    let flushed = CompletionStatus::Flushed;
    assert_eq!(adapter.statuses(&mut a), [(3, flushed), (12, flushed)]);
}

/// Returns an adapter, one of its queue pairs, and a message to another one that has no receive,
/// for which the message waits without limit.
fn sender_without_a_receive() -> (Adapter, Pair, Post) {
    let mut adapter = Adapter::new();
    let (a, b) = (adapter.reliable(), adapter.reliable());
    adapter.set_rnr_retry(a.number, 7);
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&b, adapter.handle(), &[])
    };
    (adapter, a, post)
}

#[test]
fn requests_in_progress_never_exceed_their_queue_s_entries() {
    let (mut adapter, mut a, post) = sender_without_a_receive();
    let entries = {
        let pair = adapter.path.objects();
        usize::from(pair.queue_pairs.get(a.number).unwrap().send.entries())
    };
    // A driver that uses the entries again before their requests have ended.
    for _ in 0..entries * 3 {
        adapter.send(&mut a, &post);
        adapter.work();
        let pair = adapter.path.objects();
        let jobs = pair
            .queue_pairs
            .get(a.number)
            .unwrap()
            .jobs
            .numbers()
            .count();
        assert!(jobs <= entries, "{jobs}");
    }
}

#[test]
fn wrong_doorbell_is_found_while_no_request_may_begin() {
    let (mut adapter, mut a, post) = sender_without_a_receive();
    for _ in 0..ENTRIES {
        adapter.send(&mut a, &post);
        adapter.work();
    }
    let queue = adapter.completion_queue(None).number;
    let without_entries = CreateQueuePair {
        send_entries: 0,
        send_bytes: 0,
        ..adapter.pair_parameters(queue, 64)
    };
    let created = adapter.path.objects().create_queue_pair(without_entries);
    let empty = created.unwrap();
    adapter.make_ready(empty);
    for (number, doorbell) in [(a.number, a.sent + ENTRIES + 1), (empty, 1)] {
        adapter.ring(Doorbell::Send(number % limits::QUEUE_PAIRS), doorbell);
        adapter.work();
        let state = adapter
            .path
            .objects()
            .queue_pairs
            .get(number)
            .unwrap()
            .state;
        assert_eq!(state, QueuePairState::Error, "{number}");
    }
}

#[test]
fn pair_that_was_reset_starts_from_the_beginning() {
    let (mut adapter, mut a, post) = sender_without_a_receive();
    adapter.send(&mut a, &post);
    adapter.work();
    adapter.set_state(a.number, QueuePairState::Reset);
    assert_eq!(adapter.work(), None);
    assert_eq!(
        adapter.poll(&mut a.queue),
        [],
        "no earlier request completes"
    );
    let pair = adapter.path.objects();
    let pair = pair.queue_pairs.get(a.number).unwrap();
    assert_eq!((pair.send.taken(), pair.send.peek(0)), (0, Ok(None)));
}

#[test]
fn destroyed_objects_end_what_they_were_used_for() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    adapter.set_rnr_retry(a.number, 7);
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&b, handle, &[])
    };
    adapter.send(&mut a, &post);
    let wait = adapter.work().unwrap();
    adapter.path.objects().destroy_queue_pair(b.number).unwrap();
    adapter.now += wait;
    adapter.work();
    assert_eq!(
        adapter.one(&mut a).status,
        CompletionStatus::RemoteBadQueuePair
    );
    adapter.send(&mut a, &post);
    adapter.path.objects().destroy_queue_pair(a.number).unwrap();
    assert_eq!(adapter.work(), None);
    adapter.path.reset();
    adapter.send(&mut a, &post);
    assert_eq!(adapter.work(), None);
    assert_eq!(adapter.poll(&mut a.queue), []);
    assert_eq!(adapter.poll(&mut b.queue), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any bytes in both queues and any doorbells: each posted send is completed at most once, and
    /// nothing is written outside the regions and the queues.
    #[test]
    fn hostile_queues_neither_hang_nor_write_elsewhere(
        entries in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 64), any::<bool>()), 1..12),
        descriptors in proptest::collection::vec(any::<[u8; 16]>(), 0..8),
        doorbell in any::<u16>(),
        seed in any::<u64>(),
    ) {
        let mut adapter = Adapter::with_seed(Some(seed));
        let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
        let handle = adapter.handle();
        let keys = adapter.region(PAYLOAD, 8192);
        for descriptor in &descriptors {
            let descriptor: ReceiveDescriptor = zerocopy::transmute!(*descriptor);
            adapter.write_descriptor(&mut b, descriptor);
        }
        adapter.ring(Doorbell::Receive(b.number % limits::QUEUE_PAIRS), doorbell % 40);
        let good = Post::rdma(
            Operation::RdmaRead, &b, handle,
            (keys.local, PAYLOAD, 100), (keys.remote, PAYLOAD + 4096, 100),
        );
        let mut signalled = 0;
        for (bytes, is_shaped) in &entries {
            let mut bytes = bytes.clone();
            if *is_shaped {
                // A valid request with a few wrong fields.
                let right = entry(&good, 64);
                let wrong = usize::from(bytes[0] % 64);
                let value = bytes[1];
                bytes = right;
                bytes[wrong] = value;
            }
            let parsed = WorkRequest::parse(&bytes);
            let is_refused = matches!(parsed.data, Data::Refused(_));
            signalled += usize::from(!is_refused && parsed.is_signalled);
            adapter.write_entry(&mut a, &bytes);
        }
        for _ in 0..10 {
            let Some(wait) = adapter.work() else { break };
            adapter.now += wait;
        }
        prop_assert_eq!(adapter.work(), None, "nothing is left");
        let completions = adapter.poll(&mut a.queue);
        // A request without a signal is completed if it fails, and otherwise only counted.
        let ok = completions.iter().filter(|it| it.status == CompletionStatus::Ok).count();
        prop_assert!(ok <= signalled);
        let done = adapter.path.statistics();
        let succeeded = done.sends + done.reads + done.writes;
        let failed = (completions.len() - ok) as u64;
        prop_assert_eq!(succeeded + failed, entries.len() as u64, "each has one end");
        prop_assert!(completions.iter().all(|it| it.pair == a.number));
        let behind = PAYLOAD + 8192;
        let rest = adapter.bytes(behind, 1 << 16);
        prop_assert!(rest.iter().all(|byte| *byte == 0));
    }
}
