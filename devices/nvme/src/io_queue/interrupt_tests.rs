//! Tests of `interrupt.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_nvme_spec::registers::Doorbell;
use zerocopy::FromZeros;

use super::completion::CompletionQueue;
use super::fixture::{Sent, TwoWords, completion_queue, flush, interrupts};
use super::interrupt::{Aggregation, Coalescing, Next, QueueInterrupts};
use crate::doorbell_page::Owner;

const NONE: InterruptCoalescing = InterruptCoalescing::new();

thread_local! {
    /// Time that has passed since the start of the test.
    static LATER: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static START: Instant = Instant::now();
}

fn pass(micros: u64) {
    LATER.set(LATER.get() + Duration::from_micros(micros));
}

fn clock() -> Instant {
    START.with(|start| *start) + LATER.get()
}

/// Two queues of one vector.
struct Fixture {
    queues: [CompletionQueue; 2],
    interrupts: QueueInterrupts,
    sent: Arc<Sent>,
}

impl Fixture {
    fn new(settings: InterruptCoalescing) -> Self {
        let (mut interrupts, sent) = interrupts(settings);
        interrupts.clock = clock;
        let queues = [1, 2].map(|id| {
            let doorbells = &interrupts.notifier.doorbells;
            doorbells.set_owner(Doorbell::CompletionHead(id), Some(Owner(1)));
            completion_queue(&interrupts, id, (0, 16))
        });
        Self {
            queues,
            interrupts,
            sent,
        }
    }

    /// Flushes a completion to a queue.
    fn write(&mut self, index: usize, status: Status) {
        let queue = &mut self.queues[index];
        let permit = queue.reserve().unwrap();
        queue.stage(permit, CompletionEntry::new_zeroed(), status);
        flush(queue, &self.interrupts).unwrap();
    }

    /// Signals the completions of a queue. Returns the number of interrupts raised so far.
    fn signal_before(&mut self, index: usize, next: Next) -> usize {
        let queue = &mut self.queues[index];
        queue.take_answer(&self.interrupts, &mut TwoWords::default());
        queue.signal(&self.interrupts, next);
        self.sent.count()
    }

    /// The same while the worker is busy.
    fn signal(&mut self, index: usize) -> usize {
        self.signal_before(index, Next::Work)
    }

    /// Posts a completion to a queue. Returns the number of interrupts raised so far.
    fn post(&mut self, index: usize) -> usize {
        self.write(index, Status::SUCCESS);
        self.signal(index)
    }

    /// Rings the head doorbell of a queue, as the guest.
    fn ring(&mut self, index: u16, head: u32) {
        let doorbell = Doorbell::CompletionHead(index + 1);
        self.interrupts.notifier.ring(doorbell, head);
    }

    /// Rings as the guest, and takes the head.
    fn take(&mut self, index: u16, head: u32) {
        self.ring(index, head);
        let memory = &mut TwoWords::default();
        let queue = &mut self.queues[usize::from(index)];
        queue.take_head(&self.interrupts, memory);
    }

    /// Signals both queues, as after a round of work with other queues. Returns the number of
    /// interrupts raised so far.
    fn settle(&mut self) -> usize {
        self.signal(0);
        self.signal(1)
    }

    fn deadline(&self, index: usize) -> Option<Instant> {
        self.queues[index].interrupt.deadline
    }
}

/// An interrupt for 4 completions, or after 200 microseconds.
fn coalesced() -> Fixture {
    Fixture::new(NONE.with_thr(3).with_time(2))
}

fn plain() -> Fixture {
    Fixture::new(NONE)
}

#[test]
fn coalescing_applies_with_threshold_and_time_unless_disabled() {
    let coalescing = Coalescing::new(3);
    assert_eq!(coalescing.of(1, false), None, "the default");
    let settings = NONE.with_thr(7).with_time(3);
    coalescing.set(settings, &[false, false, true]);
    let expected = Aggregation {
        threshold: 8,
        time: Duration::from_micros(300),
    };
    let found = [0, 1, 2, 3].map(|vector| coalescing.of(vector, false));
    assert_eq!(found, [Some(expected), Some(expected), None, None]);
    for half in [settings.with_thr(0), settings.with_time(0)] {
        coalescing.set(half, &[false; 3]);
        assert_eq!(coalescing.of(1, false), None, "{half:?}");
    }
}

#[test]
fn guest_that_answers_is_interrupted_for_each_post() {
    let mut fixture = plain();
    for head in 1..4 {
        assert_eq!(fixture.post(0), usize::try_from(head).unwrap());
        fixture.ring(0, head);
    }
    assert_eq!(fixture.settle(), 3);
    assert_eq!(fixture.deadline(0), None);
}

#[test]
fn interrupt_waits_until_the_last_one_is_answered() {
    let mut fixture = plain();
    assert_eq!([(); 3].map(|()| fixture.post(0)), [1, 1, 1]);
    pass(99);
    assert_eq!(fixture.settle(), 1);
    fixture.ring(0, 1);
    assert_eq!(fixture.settle(), 2, "two entries are left");
}

#[test]
fn interrupt_after_an_unanswered_one_is_raised_before_a_wait() {
    let mut fixture = plain();
    fixture.post(0);
    fixture.post(0);
    assert_eq!(fixture.signal_before(0, Next::Wait), 2);
    assert_eq!(fixture.deadline(0), None);
    let mut fixture = coalesced();
    fixture.post(0);
    assert_eq!(fixture.signal_before(0, Next::Wait), 0, "set by the host");
}

#[test]
fn unanswered_interrupt_with_coalescing_disabled_delays_none() {
    let coalescing = Coalescing::new(2);
    assert!(
        [0, 1]
            .iter()
            .all(|vector| coalescing.of(*vector, true).is_some())
    );
    coalescing.set(NONE, &[true, false]);
    let found = [0, 1].map(|vector| coalescing.of(vector, true).is_some());
    assert_eq!(found, [false, true]);
}

#[test]
fn interrupt_after_an_unanswered_one_is_raised_in_time() {
    let mut fixture = plain();
    fixture.post(0);
    fixture.post(0);
    let due = clock() + Duration::from_micros(100);
    assert_eq!(fixture.deadline(0), Some(due));
    pass(100);
    assert_eq!((fixture.settle(), fixture.settle()), (2, 2));
}

#[test]
fn guest_that_has_taken_all_is_not_interrupted_again() {
    let mut fixture = plain();
    fixture.post(0);
    fixture.post(0);
    fixture.ring(0, 2);
    pass(100);
    assert_eq!(fixture.settle(), 1);
    assert_eq!(fixture.post(0), 2, "for the next entry at once");
}

#[test]
fn failure_is_not_held_back_for_an_answer() {
    let mut fixture = plain();
    fixture.post(0);
    fixture.write(0, Status::INVALID_FIELD);
    assert_eq!(fixture.signal(0), 2);
}

#[test]
fn interrupt_waits_for_the_threshold() {
    let mut fixture = coalesced();
    assert_eq!([(); 4].map(|()| fixture.post(0)), [0, 0, 0, 1]);
    pass(1000);
    assert_eq!(fixture.settle(), 1, "nothing is left of it");
    (0..9).for_each(|_| fixture.write(0, Status::SUCCESS));
    assert_eq!(fixture.signal(0), 2);
}

#[test]
fn interrupt_is_raised_once_the_aggregation_time_is_over() {
    let mut fixture = coalesced();
    fixture.post(0);
    let deadline = fixture.deadline(0);
    assert_eq!(deadline, Some(clock() + Duration::from_micros(200)));
    pass(199);
    fixture.post(0);
    assert_eq!(fixture.settle(), 0);
    assert_eq!(fixture.deadline(0), deadline);
    pass(1);
    assert_eq!(fixture.settle(), 1);
    assert_eq!(fixture.deadline(0), None);
    pass(1000);
    assert_eq!(fixture.settle(), 1, "once");
}

#[test]
fn failure_raises_an_interrupt_at_once_for_all_before() {
    let mut fixture = coalesced();
    fixture.post(0);
    fixture.write(0, Status::INVALID_FIELD);
    assert_eq!(fixture.signal(0), 1);
    assert_eq!(fixture.deadline(0), None);
}

#[test]
fn entries_taken_without_an_interrupt_need_none() {
    let mut fixture = coalesced();
    fixture.post(0);
    fixture.post(0);
    fixture.take(0, 1);
    assert!(fixture.deadline(0).is_some(), "one is left");
    fixture.take(0, 2);
    pass(1000);
    assert_eq!(fixture.settle(), 0);
}

#[test]
fn entries_taken_before_do_not_cancel_an_interrupt() {
    let mut fixture = coalesced();
    for _ in 0..5 {
        fixture.post(0);
    }
    fixture.take(0, 4);
    pass(200);
    assert_eq!((fixture.sent.count(), fixture.settle()), (1, 2));
}

#[test]
fn one_interrupt_covers_all_that_was_flushed_before() {
    let mut fixture = Fixture::new(NONE.with_thr(2).with_time(255));
    fixture.write(0, Status::SUCCESS);
    fixture.write(0, Status::SUCCESS);
    assert_eq!((fixture.sent.count(), fixture.post(0)), (0, 1));
    assert_eq!(fixture.signal(0), 1, "nothing was flushed since");
    assert_eq!(fixture.settle(), 1);
}

#[test]
fn queues_of_one_vector_are_coalesced_each_for_itself() {
    let mut fixture = coalesced();
    fixture.post(0);
    pass(100);
    fixture.post(1);
    fixture.take(0, 1);
    pass(199);
    assert_eq!(fixture.settle(), 0);
    pass(1);
    assert_eq!(fixture.settle(), 1);
}

#[test]
fn entries_taken_do_not_count_for_the_threshold() {
    let mut fixture = Fixture::new(NONE.with_thr(1).with_time(255));
    assert_eq!(fixture.post(0), 0);
    fixture.take(0, 1);
    assert_eq!((fixture.post(0), fixture.post(0)), (0, 1));
}

#[test]
fn head_rung_again_after_all_was_taken_lowers_the_pin() {
    let mut fixture = plain();
    fixture.post(0);
    fixture.post(0);
    let intx = |fixture: &Fixture, rung| fixture.interrupts.notifier.intx.level(0, |_| rung);
    assert!(intx(&fixture, 1));
    fixture.take(0, 2);
    fixture.take(0, 1);
    assert!(!intx(&fixture, 1));
}

#[test]
fn coalesced_interrupt_can_be_raised_at_once() {
    let mut fixture = coalesced();
    fixture.post(0);
    for _ in 0..2 {
        fixture.queues[0].signal_all(&fixture.interrupts);
    }
    pass(1000);
    assert_eq!((fixture.sent.count(), fixture.settle()), (1, 1));
}
