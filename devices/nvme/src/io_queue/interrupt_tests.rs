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
use super::interrupt::{Aggregation, Coalescing, QueueInterrupts, ROUNDS};
use crate::doorbell_page::Owner;

const NONE: InterruptCoalescing = InterruptCoalescing::new();

thread_local! {
    /// How much later it is than at the start of the test.
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
struct Scene {
    queues: [CompletionQueue; 2],
    interrupts: QueueInterrupts,
    sent: Arc<Sent>,
}

impl Scene {
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

    /// A completion has been flushed to a queue.
    fn write(&mut self, index: usize, status: Status) {
        let queue = &mut self.queues[index];
        let permit = queue.reserve().unwrap();
        queue.stage(permit, CompletionEntry::new_zeroed(), status);
        flush(queue, &mut self.interrupts).unwrap();
    }

    /// How many interrupts have been raised after the completions of a queue are signalled.
    fn signal(&mut self, index: usize, more: bool) -> usize {
        let memory = &mut TwoWords::default();
        self.queues[index].signal(&mut self.interrupts, memory, more);
        self.sent.count()
    }

    /// How many interrupts have been raised after a completion that no other follows.
    fn post(&mut self) -> usize {
        self.write(0, Status::SUCCESS);
        self.signal(0, false)
    }

    /// How many interrupts have been raised after a completion of a queue that further ones follow.
    fn post_more(&mut self, index: usize) -> usize {
        self.write(index, Status::SUCCESS);
        self.signal(index, true)
    }

    /// The guest rings the head doorbell of a queue.
    fn ring(&mut self, index: u16, head: u32) {
        let doorbell = Doorbell::CompletionHead(index + 1);
        self.interrupts.notifier.ring(doorbell, head);
    }

    /// The guest rings, and the head is taken.
    fn take(&mut self, index: u16, head: u32) {
        self.ring(index, head);
        let memory = &mut TwoWords::default();
        let queue = &mut self.queues[usize::from(index)];
        queue.take_head(&mut self.interrupts, memory);
    }

    /// How many interrupts have been raised after a round.
    fn settle(&mut self, idle: bool) -> usize {
        self.interrupts.settle(idle);
        self.sent.count()
    }
}

/// An interrupt for 4 completions, or after 200 microseconds.
fn coalesced() -> Scene {
    Scene::new(NONE.with_thr(3).with_time(2))
}

fn plain() -> Scene {
    Scene::new(NONE)
}

#[test]
fn coalescing_applies_with_threshold_and_time_unless_disabled() {
    let coalescing = Coalescing::new(3);
    assert_eq!(coalescing.of(1), None, "the default");
    let settings = NONE.with_thr(7).with_time(3);
    coalescing.set(settings, &[false, false, true]);
    let expected = Aggregation {
        threshold: 8,
        time: Duration::from_micros(300),
    };
    let found = [0, 1, 2, 3].map(|vector| coalescing.of(vector));
    assert_eq!(found, [Some(expected), Some(expected), None, None]);
    for half in [settings.with_thr(0), settings.with_time(0)] {
        coalescing.set(half, &[false; 3]);
        assert_eq!(coalescing.of(1), None, "{half:?}");
    }
}

#[test]
fn without_coalescing_each_post_raises_an_interrupt() {
    let mut scene = plain();
    assert_eq!([(); 2].map(|()| scene.post()), [1, 2]);
    assert_eq!(scene.settle(true), 2);
    assert_eq!(scene.interrupts.deadline(), None);
}

#[test]
fn interrupt_waits_for_the_threshold() {
    let mut scene = coalesced();
    assert_eq!([(); 4].map(|()| scene.post()), [0, 0, 0, 1]);
    pass(1000);
    assert_eq!(scene.settle(true), 1, "nothing is left of it");
    (0..9).for_each(|_| scene.write(0, Status::SUCCESS));
    assert_eq!(scene.signal(0, false), 2);
}

#[test]
fn interrupt_is_raised_after_the_aggregation_time_however_idle() {
    let mut scene = coalesced();
    scene.post();
    let deadline = scene.interrupts.deadline();
    pass(199);
    scene.post();
    assert_eq!(scene.settle(true), 0);
    assert_eq!(scene.interrupts.deadline(), deadline);
    pass(1);
    assert_eq!(scene.settle(false), 1);
    assert_eq!(scene.interrupts.deadline(), None);
    pass(1000);
    assert_eq!(scene.settle(true), 1, "once");
}

#[test]
fn failure_raises_an_interrupt_at_once_for_all_before() {
    let mut scene = coalesced();
    scene.post();
    scene.write(0, Status::INVALID_FIELD);
    assert_eq!(scene.signal(0, false), 1);
    assert_eq!(scene.interrupts.deadline(), None);
}

#[test]
fn entries_taken_without_an_interrupt_need_none() {
    let mut scene = coalesced();
    scene.post();
    scene.post();
    scene.take(0, 1);
    assert!(scene.interrupts.deadline().is_some(), "one is left");
    scene.take(0, 2);
    pass(1000);
    assert_eq!(scene.settle(true), 0);
}

#[test]
fn unanswered_interrupt_holds_the_next_back_for_more() {
    let mut scene = plain();
    assert_eq!((scene.post_more(0), scene.post_more(0)), (1, 1));
    assert_eq!(scene.post(), 2, "no more follow");
    scene.take(0, 1);
    assert_eq!(scene.post_more(0), 3, "the guest has answered");
}

#[test]
fn interrupt_held_back_for_more_is_raised_when_idle() {
    let mut scene = plain();
    scene.post_more(0);
    scene.post_more(0);
    assert_eq!(scene.settle(false), 1);
    assert_eq!(scene.settle(true), 2, "there is no work");
}

#[test]
fn interrupt_held_back_for_more_is_raised_after_some_rounds() {
    let mut scene = plain();
    scene.post_more(0);
    let sent: Vec<_> = (0..ROUNDS)
        .map(|_| {
            scene.post_more(0);
            scene.settle(false)
        })
        .collect();
    assert_eq!(sent, [1, 1, 1, 2]);
}

#[test]
fn interrupt_held_back_is_raised_only_if_entries_are_left() {
    for (head, sent) in [(1, 2), (2, 1)] {
        let mut scene = plain();
        scene.post_more(0);
        scene.post_more(0);
        scene.take(0, head);
        assert_eq!(scene.settle(false), sent, "{head}");
    }
}

#[test]
fn guest_that_has_answered_is_interrupted_at_once() {
    let mut scene = plain();
    assert_eq!((scene.post_more(0), scene.post_more(0)), (1, 1), "at work");
    let mut scene = plain();
    scene.post_more(0);
    scene.take(0, 1);
    assert_eq!(scene.post_more(0), 2);
}

#[test]
fn head_is_read_before_an_interrupt_is_held_back() {
    let mut scene = plain();
    scene.post_more(0);
    scene.write(0, Status::SUCCESS);
    scene.ring(0, 1);
    assert_eq!(scene.signal(0, true), 2, "the guest has answered meanwhile");
}

#[test]
fn one_interrupt_covers_all_that_was_flushed_before() {
    let mut scene = Scene::new(NONE.with_thr(2).with_time(255));
    scene.write(0, Status::SUCCESS);
    scene.write(0, Status::SUCCESS);
    assert_eq!((scene.sent.count(), scene.post_more(0)), (0, 1));
    assert_eq!(scene.signal(0, true), 1, "nothing was flushed since");
    assert_eq!(scene.settle(true), 1);
}

#[test]
fn guest_that_has_emptied_one_of_two_queues_is_interrupted() {
    let mut scene = plain();
    scene.post_more(0);
    scene.post_more(1);
    scene.take(0, 1);
    assert_eq!(scene.settle(false), 2);
}

#[test]
fn entries_taken_do_not_count_for_the_threshold() {
    let mut scene = Scene::new(NONE.with_thr(1).with_time(255));
    assert_eq!(scene.post(), 0);
    scene.take(0, 1);
    assert_eq!((scene.post(), scene.post()), (0, 1));
}

#[test]
fn head_rung_again_after_all_was_taken_lowers_the_pin() {
    let mut scene = plain();
    scene.post_more(0);
    scene.post_more(0);
    let intx = |scene: &Scene, rung| scene.interrupts.notifier.intx.level(0, |_| rung);
    assert!(intx(&scene, 1));
    scene.take(0, 2);
    scene.take(0, 1);
    assert!(!intx(&scene, 1));
}

#[test]
fn pending_interrupts_can_be_raised_or_forgotten() {
    let mut scene = coalesced();
    scene.post();
    scene.interrupts.raise_all();
    scene.interrupts.raise_all();
    assert_eq!(scene.sent.count(), 1);
    scene.post();
    scene.interrupts.forget();
    pass(1000);
    assert_eq!(scene.settle(true), 1);
}
