//! Sends and receives.

use peerbar_dma::{Completer, Purpose, Route};
use peerbar_efa_spec::completion::{CompletionStatus, NO_ADDRESS_HANDLE, QueueType};
use peerbar_efa_spec::work::Operation;
use proptest::prelude::*;

use super::fixture::{Adapter, Completion, GID, PAYLOAD, Post};
use crate::limits;
use crate::objects::QueuePairKind;

const TO: u64 = PAYLOAD + (1 << 20);

#[test]
fn message_arrives_by_one_copy_and_completes_both_sides() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    let data = adapter.fill(PAYLOAD + 5, 5000, 1);
    adapter.receive(&mut b, 77, &[(keys.local, TO + 3, 6000)]);
    let post = Post {
        immediate: Some(0xdead_beef),
        ..Post::send(&b, handle, &[(keys.local, PAYLOAD + 5, 5000)])
    };
    adapter.send(&mut a, &post.with_id(9));
    adapter.work();
    let sent = Completion {
        pair: a.number,
        queue: QueueType::Send,
        id: 9,
        status: CompletionStatus::Ok,
        operation: Operation::Send,
        bytes: 0,
        immediate: None,
        unsolicited: false,
        handle: 0,
        source: 0,
    };
    assert_eq!(adapter.one(&mut a), sent);
    let received = Completion {
        pair: b.number,
        queue: QueueType::Receive,
        id: 77,
        bytes: 5000,
        immediate: Some(0xdead_beef),
        handle,
        source: a.number,
        ..sent
    };
    assert_eq!(adapter.one(&mut b), received);
    assert_eq!(adapter.bytes(TO + 3, 5000), data);
    assert_eq!(adapter.bytes(TO + 5003, 8), [0; 8]);
    let counts = adapter.requester.ledger().counters().snapshot();
    let payload = counts
        .iter()
        .filter(|(kind, _)| kind.purpose == Purpose::Payload);
    for (kind, count) in payload.clone() {
        assert_eq!(
            (kind.route, kind.completer),
            (Route::GuestRam, Completer::GuestRam)
        );
        assert_eq!((count.requests, count.bytes), (1, 5000), "{kind:?}");
    }
    assert_eq!(payload.count(), 2, "it is read once and written once");
    let statistics = adapter.path.statistics();
    assert_eq!((statistics.sends, statistics.send_bytes), (1, 5000));
    assert_eq!((statistics.receives, statistics.receive_bytes), (1, 5000));
}

#[test]
fn inline_message_arrives_without_a_read_of_memory() {
    for (entry_bytes, length) in [(64, 32), (128, 80), (64, 0)] {
        let mut adapter = Adapter::new();
        let queue = adapter.completion_queue(None);
        let kind = QueuePairKind::ReliableDatagram;
        let mut a = adapter.pair_with(kind, queue, entry_bytes, false);
        let mut b = adapter.reliable();
        let handle = adapter.handle();
        let keys = adapter.region(TO, 4096);
        adapter.receive(&mut b, 1, &[(keys.local, TO, 100)]);
        let data: Vec<u8> = (1..=length).collect();
        let post = Post {
            inline: Some(data.clone()),
            ..Post::send(&b, handle, &[])
        };
        adapter.send(&mut a, &post);
        adapter.work();
        assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
        assert_eq!(adapter.one(&mut b).bytes, u32::from(length));
        assert_eq!(adapter.bytes(TO, data.len()), data);
    }
}

#[test]
fn datagram_stands_behind_its_routing_header() {
    let mut adapter = Adapter::new();
    let kind = QueuePairKind::Datagram;
    let (mut a, mut b) = (adapter.pair(kind), adapter.pair(kind));
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    let data = adapter.fill(PAYLOAD, 1000, 3);
    adapter.receive(
        &mut b,
        1,
        &[(keys.local, TO, 100), (keys.local, TO + 100, 940)],
    );
    adapter.send(
        &mut a,
        &Post::send(&b, handle, &[(keys.local, PAYLOAD, 1000)]),
    );
    adapter.work();
    assert_eq!(adapter.one(&mut a).status, CompletionStatus::Ok);
    assert_eq!(adapter.one(&mut b).bytes, 1040);
    let header = adapter.bytes(TO, 40);
    assert_eq!(header[..8], [0x60, 0, 0, 0, 0x03, 0xe8, 0, 0]);
    assert_eq!((&header[8..24], &header[24..]), (&GID.0[..], &GID.0[..]));
    assert_eq!(adapter.bytes(TO + 40, 1000), data);
}

#[test]
fn datagram_without_receive_is_lost_and_completes() {
    let mut adapter = Adapter::new();
    let kind = QueuePairKind::Datagram;
    let (mut a, mut b) = (adapter.pair(kind), adapter.pair(kind));
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 4096);
    let post = Post::send(&b, handle, &[(keys.local, PAYLOAD, 10)]);
    adapter.send(&mut a, &post);
    adapter.send(
        &mut a,
        &Post {
            qkey: 1,
            ..post.clone()
        },
    );
    adapter.send(
        &mut a,
        &Post {
            to: b.number ^ 0x100,
            ..post
        },
    );
    assert_eq!(adapter.work(), None);
    let ok = CompletionStatus::Ok;
    assert_eq!(adapter.statuses(&mut a), [(0, ok), (0, ok), (0, ok)]);
    assert_eq!(adapter.statuses(&mut b), []);
    let statistics = adapter.path.statistics();
    assert_eq!((statistics.dropped, statistics.qkey_violations), (2, 1));
}

#[test]
fn sender_without_address_handle_is_named_by_its_address() {
    let mut adapter = Adapter::new();
    let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
    // The handle is of another protection domain than the receiver's.
    let handle = adapter.handle();
    adapter.domain = adapter.path.objects().create_protection_domain().unwrap();
    let keys = adapter.region(TO, 4096);
    let queue = adapter.completion_queue(None);
    let kind = QueuePairKind::ReliableDatagram;
    let mut c = adapter.pair_with(kind, queue, 64, false);
    adapter.receive(&mut c, 1, &[(keys.local, TO, 100)]);
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&c, handle, &[])
    };
    adapter.send(&mut a, &post);
    adapter.work();
    assert_eq!(adapter.one(&mut c).handle, NO_ADDRESS_HANDLE);
    assert_eq!(adapter.poll(&mut b.queue), []);
}

#[test]
fn rings_and_phases_go_round_many_times() {
    let mut adapter = Adapter::new();
    let queue = adapter.completion_queue_of(16, None);
    let kind = QueuePairKind::ReliableDatagram;
    let mut a = adapter.pair_with(kind, queue, 64, false);
    let mut b = adapter.reliable();
    let handle = adapter.handle();
    let keys = adapter.region(PAYLOAD, 2 << 20);
    for round in 0..200u16 {
        let [low, high] = round.to_le_bytes();
        adapter.ram.write(PAYLOAD, &[low, high]).unwrap();
        // Two descriptors in every second round.
        let both = [(keys.local, TO, 1), (keys.local, TO + 1, 1)];
        let one = [(keys.local, TO, 2)];
        let buffers = if round % 2 == 0 { &both[..] } else { &one[..] };
        adapter.receive(&mut b, round, buffers);
        let post = Post::send(&b, handle, &[(keys.local, PAYLOAD, 2)]);
        adapter.send(&mut a, &post.with_id(round));
        adapter.work();
        assert_eq!(adapter.statuses(&mut a), [(round, CompletionStatus::Ok)]);
        assert_eq!(adapter.statuses(&mut b), [(round, CompletionStatus::Ok)]);
        assert_eq!(adapter.bytes(TO, 2), [low, high]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn message_is_the_bytes_of_its_buffers_in_those_of_the_receive(
        first in 0u32..5000, second in 0u32..5000,
        room in 0u16..6000, more in 0u16..6000,
        at in 0u64..5000,
    ) {
        let mut adapter = Adapter::new();
        let (mut a, mut b) = (adapter.reliable(), adapter.reliable());
        let handle = adapter.handle();
        let keys = adapter.region(PAYLOAD, 2 << 20);
        let mut data = adapter.fill(PAYLOAD + at, first as usize, 7);
        data.extend(adapter.fill(PAYLOAD + 0x4000, second as usize, 9));
        let length = first + second;
        adapter.receive(&mut b, 2, &[
            (keys.local, TO + at, room),
            (keys.local, TO + 0x4000, more),
        ]);
        let local = [
            (keys.local, PAYLOAD + at, first),
            (keys.local, PAYLOAD + 0x4000, second),
        ];
        adapter.send(&mut a, &Post::send(&b, handle, &local));
        adapter.work();
        let status = adapter.one(&mut a).status;
        if length > limits::MESSAGE_BYTES {
            prop_assert_eq!(status, CompletionStatus::LocalBadLength);
            prop_assert_eq!(adapter.poll(&mut b.queue), []);
        } else if length > u32::from(room) + u32::from(more) {
            prop_assert_eq!(status, CompletionStatus::RemoteBadLength);
            prop_assert_eq!(adapter.one(&mut b).status, CompletionStatus::LocalBadLength);
        } else {
            prop_assert_eq!(status, CompletionStatus::Ok);
            prop_assert_eq!(adapter.one(&mut b).bytes, length);
            let mut arrived = adapter.bytes(TO + at, room.into());
            arrived.extend(adapter.bytes(TO + 0x4000, more.into()));
            prop_assert_eq!(&arrived[..data.len()], &data[..]);
            prop_assert!(arrived[data.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
