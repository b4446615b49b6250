//! Objects whose numbers and memory are reused.

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_flight::{Event, FlightFile, Level, Recorder};

use super::fixture::{Adapter, Post};
use crate::limits;
use crate::memory_bar;
use crate::objects::{CreateCompletionQueue, CreateQueuePair, QueuePairKind, QueuePairState};

#[test]
fn send_queue_of_a_destroyed_pair_is_not_shown_to_the_next() {
    let mut adapter = Adapter::new();
    let mut a = adapter.reliable();
    let b = adapter.reliable();
    let handle = adapter.handle();
    let post = Post {
        inline: Some(b"secret".to_vec()),
        ..Post::send(&b, handle, &[])
    };
    adapter.send(&mut a, &post);
    let slot = a.number % limits::QUEUE_PAIRS;
    adapter.path.objects().destroy_queue_pair(a.number).unwrap();
    // Another process takes the slot.
    loop {
        let next = adapter.reliable_bare();
        if next % limits::QUEUE_PAIRS == slot {
            break;
        }
        adapter.path.objects().destroy_queue_pair(next).unwrap();
    }
    let mut left = [0; 64];
    adapter
        .bar()
        .read(memory_bar::send_queue(slot), &mut left)
        .unwrap();
    assert_eq!(
        left, [0; 64],
        "the next owner reads what the one before sent"
    );
}

#[test]
fn one_address_has_one_handle_in_a_domain() {
    let adapter = Adapter::new();
    let (a, b) = (adapter.handle(), adapter.handle());
    assert_eq!(
        a, b,
        "as the firmware answers drivers that have no cache of handles"
    );
}

#[test]
fn request_that_is_dropped_ends_in_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic0.flight");
    let mut adapter = Adapter::new();
    let recorder = Recorder::create(&path, "nic0", Level::All).unwrap();
    adapter.requester.ledger().record_in(recorder);
    let [mut a, mut b, mut c] = [(); 3].map(|()| adapter.reliable());
    let (handle, deaf) = (adapter.handle(), adapter.reliable());
    let post = Post {
        inline: Some(vec![1]),
        ..Post::send(&deaf, handle, &[])
    };
    for pair in [&mut a, &mut b, &mut c] {
        adapter.set_rnr_retry(pair.number, 7);
        adapter.send(pair, &post);
    }
    assert!(adapter.work().is_some(), "they wait for a receive");
    let counts = || {
        let records = FlightFile::open(&path).unwrap().read().unwrap().records;
        let begun = records
            .iter()
            .filter(|it| matches!(it.event, Event::Begin { .. }));
        let status = CompletionStatus::Flushed as u8;
        let ended = records.iter().filter(
            |it| matches!(it.event, Event::End { status: it, .. } if it == u16::from(status)),
        );
        (begun.count(), ended.count())
    };
    assert_eq!(counts(), (3, 0));
    adapter.path.objects().destroy_queue_pair(a.number).unwrap();
    adapter.work();
    assert_eq!(counts(), (3, 1));
    adapter.set_state(b.number, QueuePairState::Reset);
    adapter.work();
    assert_eq!(counts(), (3, 2));
    adapter.path.reset();
    adapter.work();
    assert_eq!(counts(), (3, 3));
}

impl Adapter {
    fn reliable_bare(&mut self) -> u16 {
        let create = CreateCompletionQueue {
            uar: self.uar,
            entries: 16,
            entry_bytes: 32,
            address: 4 << 20,
            event_queue: None,
            with_source_address: false,
        };
        let cq = self.path.objects().create_completion_queue(create).unwrap();
        let create = CreateQueuePair {
            kind: QueuePairKind::ReliableDatagram,
            protection_domain: self.domain,
            uar: self.uar,
            send_completions: cq.into(),
            receive_completions: cq.into(),
            send_entries: 16,
            send_bytes: 16 * 64,
            receive_address: 0,
            receive_bytes: 0,
            unsolicited_writes: false,
        };
        self.path.objects().create_queue_pair(create).unwrap()
    }
}
