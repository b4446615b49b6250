//! Event counters, as user space sees them in their words.

use peerbar_efa_spec::admin::event_counter::QpEvents;
use peerbar_efa_spec::completion::CompletionStatus as S;
use peerbar_efa_spec::work::Operation;

use super::connected::{Connected, TO};
use super::fixture::{Adapter, PAYLOAD, Post, RAM};
use super::remote::Two;
use crate::objects::{CreateEventCounter, ModifyEventCounter, QueuePairState};

/// The words of the counters, one for each event.
const WORDS: u64 = PAYLOAD + (3 << 20);
/// The indices of the bits of [`QpEvents`].
const REMOTE_READ: usize = 8;
const REMOTE_WRITE: usize = 9;

/// Creates a counter with its word at this address, and attaches it to these events of a queue pair
/// that has been idle. Returns its number.
fn attach(adapter: &Adapter, pair: u16, events: QpEvents, address: u64) -> u16 {
    adapter.set_state(pair, QueuePairState::Reset);
    let create = CreateEventCounter {
        uar: adapter.uar,
        address,
    };
    let mut objects = adapter.path.objects();
    let counter = objects.create_event_counter(create, |_, _| true).unwrap();
    objects.attach_event_counter(counter, pair, events).unwrap();
    drop(objects);
    adapter.make_ready(pair);
    counter
}

/// Attaches a counter to each event of a queue pair.
fn attach_all(adapter: &Adapter, pair: u16) {
    for bit in 0..10u64 {
        let events = QpEvents::from_bits((1u32 << bit).into());
        attach(adapter, pair, events, WORDS + 8 * bit);
    }
}

/// Returns the words of those counters.
fn words(adapter: &Adapter) -> [u64; 10] {
    std::array::from_fn(|at| {
        let word = adapter.bytes(WORDS + 8 * at as u64, 8);
        u64::from_le_bytes(word.try_into().unwrap())
    })
}

#[test]
fn each_event_of_a_sender_counts_in_its_word() {
    let mut it = Connected::new();
    attach_all(&it.adapter, it.a.number);
    let bad = (it.keys.local ^ 1, PAYLOAD, 8);
    let good = [
        it.message(8),
        it.rdma(Operation::RdmaRead, 600_000),
        it.rdma(Operation::RdmaWrite, 0),
    ];
    for (post, times) in good.iter().zip(1..) {
        for _ in 0..times {
            it.adapter.receive(&mut it.b, 1, &[(it.keys.local, TO, 64)]);
            it.post(post);
            it.post(&Post {
                local: vec![bad],
                remote: (it.keys.remote, TO, 8),
                ..post.clone()
            });
        }
    }
    it.adapter.work();
    assert_eq!(it.statuses().len(), 12);
    assert_eq!(words(&it.adapter), [1, 1, 0, 0, 2, 2, 3, 3, 0, 0]);
}

#[test]
fn each_event_of_a_receiver_counts_in_its_word() {
    let mut it = Connected::new();
    attach_all(&it.adapter, it.b.number);
    for (length, immediate) in [(64, None), (4, None), (64, Some(3))] {
        let buffer = (it.keys.local, TO, length);
        it.adapter.receive(&mut it.b, 1, &[buffer]);
        let post = match immediate {
            None => it.message(8),
            Some(_) => Post {
                immediate,
                ..it.rdma(Operation::RdmaWrite, 600_000)
            },
        };
        it.post(&post);
        it.adapter.work();
    }
    it.post(&it.rdma(Operation::RdmaRead, 600_000));
    it.post(&it.rdma(Operation::RdmaRead, 1));
    it.adapter.work();
    let statuses: Vec<_> = it.statuses().into_iter().map(|it| it.1).collect();
    assert_eq!(statuses, [S::Ok, S::RemoteBadLength, S::Ok, S::Ok, S::Ok]);
    assert_eq!(words(&it.adapter), [0, 0, 2, 1, 0, 0, 0, 0, 2, 1]);
}

#[test]
fn what_is_flushed_counts_as_an_error() {
    let mut it = Connected::new();
    attach_all(&it.adapter, it.a.number);
    it.adapter.receive(&mut it.a, 1, &[(it.keys.local, TO, 64)]);
    it.post(&it.message(8));
    it.post(&it.rdma(Operation::RdmaRead, 8));
    let error = QueuePairState::Error;
    it.adapter.set_state(it.a.number, error);
    it.adapter.work();
    assert_eq!(words(&it.adapter), [0, 1, 0, 1, 0, 1, 0, 0, 0, 0]);
}

fn transfers_of_another_adapter_count_once(mut it: Two) {
    attach_all(&it.far, it.b.number);
    let length = 3 << 20;
    let (from, to) = (
        it.near.region(PAYLOAD, u64::from(length)),
        it.far.region(PAYLOAD, u64::from(length)),
    );
    for operation in [Operation::RdmaRead, Operation::RdmaWrite] {
        for bytes in [length - 1, 100, 0] {
            let (local, remote) = ((from.local, PAYLOAD, bytes), (to.remote, PAYLOAD, bytes));
            let post = it.rdma(operation, local, remote);
            assert_eq!(it.done(&post).status, S::Ok);
            // A transfer that fails does not count.
            let post = it.rdma(operation, local, (to.remote, PAYLOAD + 2, length));
            assert_ne!(it.done(&post).status, S::Ok);
        }
    }
    let mut expected = [0; 10];
    (expected[REMOTE_READ], expected[REMOTE_WRITE]) = (3, 3);
    assert_eq!(words(&it.far), expected);
    it.far.receive(&mut it.b, 1, &[(to.local, PAYLOAD, 8)]);
    let (local, remote) = ((from.local, PAYLOAD, length), (to.remote, PAYLOAD, length));
    let post = Post {
        immediate: Some(1),
        ..it.rdma(Operation::RdmaWrite, local, remote)
    };
    assert_eq!(it.done(&post).status, S::Ok);
    (expected[2], expected[REMOTE_WRITE]) = (1, 4);
    assert_eq!(words(&it.far), expected);
}

#[test]
fn transfers_of_another_adapter_count_once_all_is_done() {
    transfers_of_another_adapter_count_once(Two::reliable());
}

#[test]
fn transfers_through_slots_count_once_all_is_done() {
    transfers_of_another_adapter_count_once(Two::sharing());
}

#[test]
fn report_of_an_unknown_adapter_counts_nothing() {
    use super::super::wire::Arrival;
    use super::fixture::QKEY;
    use super::remote::A;
    use crate::objects::Gid;
    use crate::work::packet::{Packet, Verb};
    use crate::work::request::Buffer;
    let mut it = Two::reliable();
    attach_all(&it.far, it.b.number);
    for (from, qkey, verb) in [
        (Gid([9; 16]), QKEY, Verb::CountRead),
        (A, QKEY + 1, Verb::CountWrite),
        (A, QKEY, Verb::CountWrite),
    ] {
        let packet = Packet {
            verb,
            source: it.a.number,
            destination: it.b.number,
            qkey,
            immediate: None,
            is_staged: false,
            part: Buffer::default(),
            total: 0,
        };
        let arrival = Arrival {
            from,
            data: packet.encode(&[]),
            descriptors: Vec::new(),
            reply: Some(Box::new(|_| {})),
        };
        it.far.path.mailbox.arrive(arrival);
        it.work();
    }
    let counted = words(&it.far);
    assert_eq!((counted[REMOTE_READ], counted[REMOTE_WRITE]), (0, 1));
}

#[test]
fn counter_whose_word_is_unreachable_fails_its_queue_pairs() {
    let mut it = Connected::new();
    let send = QpEvents::new().with_send(true);
    let counter = attach(&it.adapter, it.a.number, send, RAM);
    let other = it.adapter.reliable();
    it.adapter.receive(&mut it.b, 1, &[(it.keys.local, TO, 64)]);
    it.post(&it.message(8));
    it.post(&it.message(8));
    it.adapter.work();
    let state = |adapter: &Adapter, number: u16| {
        let objects = adapter.path.objects();
        objects.query_queue_pair(number).unwrap().state
    };
    let a = it.a.number;
    assert_eq!(state(&it.adapter, a), QueuePairState::Error);
    assert_eq!(
        state(&it.adapter, other.number),
        QueuePairState::ReadyToSend
    );
    let statuses: Vec<_> = it.statuses().into_iter().map(|it| it.1).collect();
    assert_eq!(statuses, [S::Ok, S::Flushed], "the first one was sent");

    let mut third = it.adapter.reliable();
    it.adapter.set_state(third.number, QueuePairState::Reset);
    let mut objects = it.adapter.path.objects();
    objects
        .attach_event_counter(counter, third.number, send)
        .unwrap();
    drop(objects);
    it.adapter.make_ready(third.number);
    it.adapter.receive(&mut it.b, 2, &[(it.keys.local, TO, 64)]);
    let message = it.message(8);
    it.adapter.send(&mut third, &message);
    it.adapter.work();
    let failed = state(&it.adapter, third.number);
    assert_eq!(failed, QueuePairState::Error, "nothing is left uncounted");
    let mut objects = it.adapter.path.objects();
    objects
        .modify_event_counter(counter, ModifyEventCounter::Set(0), |_, _| true)
        .unwrap();
    assert!(!objects.event_counters.get(counter).unwrap().has_failed);
}

#[test]
fn word_that_a_guest_changes_is_set_right_by_the_next_event() {
    let mut it = Connected::new();
    attach_all(&it.adapter, it.a.number);
    for expected in 1..=3 {
        it.adapter.fill(WORDS, 80, 0x55);
        it.post(&it.rdma(Operation::RdmaWrite, 8));
        it.adapter.work();
        assert_eq!(words(&it.adapter)[6], expected);
    }
}

#[test]
fn write_counts_only_once_all_of_it_is_there() {
    for seed in 0..4 {
        let mut it = Two::of_seed(seed);
        attach_all(&it.far, it.b.number);
        let length = 400_000u32;
        let (from, to) = (
            it.near.region(PAYLOAD, u64::from(length)),
            it.far.region(TO, u64::from(length)),
        );
        let data = it.near.fill(PAYLOAD, length as usize, 7);
        let post = it.rdma(
            Operation::RdmaWrite,
            (from.local, PAYLOAD, length),
            (to.remote, TO, length),
        );
        it.send(&post);
        while words(&it.far)[REMOTE_WRITE] == 0 {
            it.near.work();
            it.far.work();
            assert!(it.deliver() || !it.is_idle(), "it is never counted");
        }
        assert!(it.far.bytes(TO, length as usize) == data, "seed {seed}");
    }
}
