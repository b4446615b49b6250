//! Completion queues that are armed, event queues, and overflow.

use peerbar_efa_spec::completion::{CompletionDoorbell, CompletionStatus};
use peerbar_efa_spec::work::Operation;
use peerbar_pci::{Iova, Range};

use super::connected::Connected;
use super::fixture::{Adapter, CompletionRing, ENTRIES, Pair, Post};
use crate::memory_bar::Doorbell;
use crate::objects::{
    CreateEventQueue, CreateQueuePair, ObjectError, ObjectKind, QueuePairKind, QueuePairState,
};

/// An adapter with an event queue of that many entries, and two queue pairs. Completions of the
/// first pair are announced.
struct Announced {
    adapter: Adapter,
    events: u16,
    address: u64,
    a: Pair,
    b: Pair,
    handle: u16,
}

impl Announced {
    fn new(entries: u16) -> Self {
        let mut adapter = Adapter::new();
        let (events, address) = adapter.event_queue(entries);
        let queue = adapter.completion_queue(Some(events));
        let kind = QueuePairKind::ReliableDatagram;
        let a = adapter.pair_with(kind, queue, 64, false);
        let b = adapter.reliable();
        let handle = adapter.handle();
        Self {
            adapter,
            events,
            address,
            a,
            b,
            handle,
        }
    }

    /// Writes the doorbell of the completion queue of the first pair.
    fn doorbell(&self, consumed: u16, number: u8, arm: bool) {
        let value = CompletionDoorbell::new()
            .with_consumer_index(consumed)
            .with_command_sn(number)
            .with_arm(arm);
        let CompletionRing { number, .. } = self.a.queue;
        let uar = self.adapter.uar;
        let doorbell = Doorbell::Completion(number);
        self.adapter.path.doorbell(uar, doorbell, value.into_bits());
    }

    /// Makes the first pair complete a work request, which fails.
    fn complete(&mut self) {
        let post = Post {
            to: u16::MAX,
            inline: Some(vec![]),
            ..Post::send(&self.b, self.handle, &[])
        };
        self.adapter.send(&mut self.a, &post);
        self.adapter.work();
    }

    fn arm_events(&mut self) {
        self.adapter.path.arm_event_queue(self.events);
        self.adapter.work();
    }

    /// Returns the vectors that were raised since the last call.
    fn raised(&self) -> Vec<u16> {
        std::mem::take(&mut *self.adapter.raised.0.lock())
    }

    fn has_event(&self, index: u16, phase: bool) -> bool {
        let event = self.adapter.event(self.address, index);
        event.common.phase() == phase && event.completion_queue.get() == self.a.queue.number
    }
}

#[test]
fn armed_queue_announces_its_next_completion_once() {
    let mut it = Announced::new(16);
    it.arm_events();
    it.complete();
    assert!(it.raised().is_empty(), "it is not armed");
    it.doorbell(1, 0, true);
    it.adapter.work();
    assert!(it.raised().is_empty(), "there is nothing new");
    it.complete();
    assert_eq!(it.raised(), [5]);
    assert!(it.has_event(0, true));
    it.complete();
    assert!(it.raised().is_empty());
    assert!(!it.adapter.event(it.address, 1).common.phase());
}

#[test]
fn queue_armed_too_late_announces_at_once() {
    let mut it = Announced::new(16);
    it.arm_events();
    it.complete();
    it.doorbell(0, 0, true);
    it.adapter.work();
    assert_eq!(it.raised(), [5]);
}

#[test]
fn event_that_was_not_taken_stands_for_later_ones() {
    let mut it = Announced::new(16);
    it.arm_events();
    it.doorbell(0, 0, true);
    it.complete();
    assert_eq!(it.raised(), [5]);
    it.arm_events();
    it.doorbell(0, 0, true);
    it.complete();
    assert!(it.raised().is_empty());
    it.doorbell(2, 1, true);
    it.complete();
    assert_eq!(it.raised(), [5]);
    assert!(it.has_event(1, true));
}

#[test]
fn event_between_interrupt_and_arm_is_announced_by_the_arm() {
    let mut it = Announced::new(16);
    it.arm_events();
    it.doorbell(0, 0, true);
    it.complete();
    it.doorbell(1, 1, true);
    it.complete();
    assert_eq!(it.raised(), [5], "the event queue is not armed again");
    assert!(it.has_event(1, true));
    it.arm_events();
    assert_eq!(it.raised(), [5]);
    it.arm_events();
    assert!(it.raised().is_empty());
}

#[test]
fn event_queue_is_filled_by_half_between_two_arms() {
    let mut it = Announced::new(4);
    it.arm_events();
    let mut consumed = 0;
    let mut next = |it: &mut Announced| {
        it.doorbell(consumed, consumed.to_le_bytes()[0] % 4, true);
        it.complete();
        consumed += 1;
    };
    (0..4).for_each(|_| next(&mut it));
    assert!(it.has_event(0, true) && it.has_event(1, true));
    assert!(
        !it.has_event(2, true),
        "the driver has not taken the others"
    );
    it.arm_events();
    assert!(it.has_event(2, true));
    assert!(
        !it.has_event(3, true),
        "one event stands for two completions"
    );
    next(&mut it);
    assert!(it.has_event(3, true));
    it.arm_events();
    next(&mut it);
    assert!(it.has_event(0, false), "the phase changes");
}

#[test]
fn completion_queue_that_overflows_fails_its_pairs_only() {
    let mut it = Announced::new(16);
    for _ in 0..ENTRIES {
        it.complete();
    }
    let state = |it: &Announced, number| {
        let pair = it.adapter.path.objects().query_queue_pair(number);
        pair.unwrap().state
    };
    assert_eq!(state(&it, it.a.number), QueuePairState::ReadyToSend);
    it.complete();
    assert_eq!(state(&it, it.a.number), QueuePairState::Error);
    assert_eq!(state(&it, it.b.number), QueuePairState::ReadyToSend);
    let completions = it.adapter.statuses(&mut it.a);
    assert_eq!(completions.len(), usize::from(ENTRIES));
    let refused = CompletionStatus::RemoteBadQueuePair;
    assert!(completions.iter().all(|(_, status)| *status == refused));
}

#[test]
fn pair_that_is_started_again_on_a_failed_queue_fails_again() {
    let mut it = Connected::new();
    write_bytes(&mut it, 1);
    assert_eq!(it.statuses().len(), 1, "the doorbell is written");
    write_bytes(&mut it, ENTRIES + 1);
    assert_eq!(state_of(&it), QueuePairState::Error);
    it.adapter.set_state(it.a.number, QueuePairState::Reset);
    it.adapter.make_ready(it.a.number);
    it.a.sent = 0;
    write_bytes(&mut it, 1);
    assert_eq!(state_of(&it), QueuePairState::Error);
}

#[test]
fn completion_queue_that_has_failed_gets_no_new_pair() {
    let mut it = Announced::new(16);
    for _ in 0..=ENTRIES {
        it.complete();
    }
    let number = it.a.queue.number;
    let create = it.adapter.pair_parameters(number, 64);
    let one_failed = [
        (create.send_completions, it.b.queue.number.into()),
        (it.b.queue.number.into(), create.receive_completions),
    ];
    for (send_completions, receive_completions) in one_failed {
        let created = it
            .adapter
            .path
            .objects()
            .create_queue_pair(CreateQueuePair {
                send_completions,
                receive_completions,
                ..create
            });
        let failed = ObjectError::Failed {
            kind: ObjectKind::CompletionQueue,
            number: number.into(),
        };
        assert_eq!(created, Err(failed));
    }
}

#[test]
fn completion_queue_that_is_read_never_overflows() {
    let mut it = Announced::new(16);
    for consumed in 0..5 * ENTRIES {
        it.complete();
        assert_eq!(it.adapter.poll(&mut it.a.queue).len(), 1);
        it.doorbell(consumed + 1, 0, false);
    }
}

/// Completes that many requests of one queue pair: writes of one byte each.
fn write_bytes(it: &mut Connected, count: u16) {
    for id in 0..count {
        it.post(&it.rdma(Operation::RdmaWrite, 1).with_id(id));
        it.adapter.work();
    }
}

fn state_of(it: &Connected) -> QueuePairState {
    let pair = it.adapter.path.objects().query_queue_pair(it.a.number);
    pair.unwrap().state
}

#[test]
fn polled_queue_that_overflows_fails_its_pairs() {
    let mut it = Connected::new();
    write_bytes(&mut it, 1);
    assert_eq!(it.statuses().len(), 1, "the doorbell is written");
    write_bytes(&mut it, ENTRIES);
    assert_eq!(state_of(&it), QueuePairState::ReadyToSend);
    write_bytes(&mut it, 1);
    assert_eq!(
        state_of(&it),
        QueuePairState::Error,
        "a completion was overwritten: {:?}",
        it.statuses()
    );
}

#[test]
fn polled_queue_without_a_doorbell_is_never_full() {
    let mut it = Connected::new();
    it.a.queue.is_polled = false;
    for _ in 0..5 {
        write_bytes(&mut it, ENTRIES);
        assert_eq!(it.statuses().len(), usize::from(ENTRIES));
    }
    assert_eq!(state_of(&it), QueuePairState::ReadyToSend);
}

#[test]
fn event_that_cannot_be_written_is_not_forgotten() {
    // Uses an event queue in separate memory, which is taken away for a while.
    const ADDRESS: u64 = 1 << 30;
    let mut adapter = Adapter::new();
    let create = CreateEventQueue {
        entries: 16,
        address: ADDRESS,
        vector: 5,
    };
    let events = adapter.path.objects().create_event_queue(create).unwrap();
    let queue = adapter.completion_queue(Some(events));
    let a = adapter.pair_with(QueuePairKind::ReliableDatagram, queue, 64, false);
    let b = adapter.reliable();
    let mut it = Connected::of(adapter, a, b);
    let arm = |it: &Connected| {
        let value = CompletionDoorbell::new().with_arm(true);
        let doorbell = Doorbell::Completion(it.a.queue.number);
        let (path, uar) = (&it.adapter.path, it.adapter.uar);
        path.arm_event_queue(events);
        path.doorbell(uar, doorbell, value.into_bits());
    };
    arm(&it);
    it.post(&it.rdma(Operation::RdmaWrite, 1));
    it.adapter.work();
    assert_eq!(it.statuses().len(), 1, "completed");
    assert!(it.adapter.raised.0.lock().is_empty());
    let memory = peerbar_dma::MemoryFile::create("events", 4096).unwrap();
    let fd = memory.file().try_clone().unwrap().into();
    let requester = &it.adapter.requester;
    requester
        .map(
            Range::new(Iova(ADDRESS), 4096).unwrap(),
            peerbar_dma::MapAccess::READ_WRITE,
            Some((fd, 0)),
        )
        .unwrap();
    // Any later activity: another completion, both queues armed once more.
    it.post(&it.rdma(Operation::RdmaWrite, 1));
    arm(&it);
    it.adapter.work();
    let mut entry = [0; 16];
    memory.read(0, &mut entry).unwrap();
    assert_eq!(
        (entry[0] & 1, it.adapter.raised.0.lock().len()),
        (1, 1),
        "event and interrupt"
    );
}
