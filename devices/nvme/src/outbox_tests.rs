//! Tests of `outbox.rs`, which the models (`tests/models`) include without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_pci::{InterruptMode, Interrupts};
use zerocopy::FromZeros;

use crate::coalescing::Coalescing;
use crate::doorbells::Doorbells;
use crate::mailbox::Mailbox;
use crate::messages::{Messages, Posted};
use crate::outbox::Outbox;
use crate::pending::Pending;
use crate::queues::CompletionQueue;
use crate::registers::Registers;

/// The vector of all queues.
const VECTOR: u16 = 1;

/// Interrupts that only know how many messages were sent.
#[derive(Default)]
struct Sent(AtomicUsize);

impl Interrupts for Sent {
    fn mode(&self) -> InterruptMode {
        InterruptMode::MsiX
    }

    fn raise(&self, _vector: u16) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn set_pin(&self, _asserted: bool) {}
}

/// An outbox with two queues of one vector, and the messages that were sent.
struct Scene {
    mailbox: Arc<Mailbox>,
    outbox: Outbox,
    sent: Arc<Sent>,
}

impl Scene {
    fn new(wish: InterruptCoalescing) -> Self {
        let sent = Arc::new(Sent::default());
        let (registers, pending) = (Registers::new(None), Pending::new(3));
        let doorbells = Doorbells::new(3, 0x4000).unwrap();
        let mailbox = Mailbox::new(registers, doorbells, pending, 1, sent.clone());
        let mailbox = Arc::new(mailbox.unwrap());
        let wishes = Coalescing::new(2);
        wishes.set(wish, &[false; 2]);
        let messages = Messages::new(2, Arc::new(wishes));
        let mut outbox = Outbox::new(mailbox.clone(), messages);
        for id in [1, 2] {
            mailbox.pending.open(id, 16, Some(VECTOR));
            outbox.add(id, CompletionQueue::new(0, 16, Some(VECTOR)));
        }
        Self {
            mailbox,
            outbox,
            sent,
        }
    }

    /// A completion has been written to the queue at a place, and further ones follow.
    fn write(&mut self, place: usize) -> Posted {
        self.stage(place);
        self.outbox.written(place);
        self.outbox.posted(place, true).unwrap()
    }

    fn stage(&mut self, place: usize) {
        let (_, queue) = self.outbox.queue(place).unwrap();
        queue.stage(CompletionEntry::new_zeroed(), Status::SUCCESS);
    }

    /// How many messages have been sent after a completion.
    fn post(&mut self, place: usize) -> usize {
        let posted = self.write(place);
        self.outbox.interrupt(posted);
        self.sent()
    }

    /// How many messages have been sent after a round that found something to do.
    fn settle(&mut self) -> usize {
        self.outbox.settle(false);
        self.sent()
    }

    fn sent(&self) -> usize {
        self.sent.0.load(Ordering::Relaxed)
    }
}

fn plain() -> Scene {
    Scene::new(InterruptCoalescing::new())
}

#[test]
fn a_guest_that_has_answered_is_interrupted_at_once() {
    let mut scene = plain();
    assert_eq!((scene.post(0), scene.post(0)), (1, 1), "it is at work");
    let mut scene = plain();
    scene.post(0);
    scene.outbox.take_head(0, 1);
    assert_eq!(scene.post(0), 2);
}

#[test]
fn one_message_is_for_all_that_was_written_before_it() {
    let wish = InterruptCoalescing::new().with_thr(2).with_time(255);
    let mut scene = Scene::new(wish);
    for _ in 0..2 {
        scene.stage(0);
        scene.outbox.written(0);
    }
    assert_eq!((scene.sent(), scene.post(0)), (0, 1));
    assert!(scene.outbox.posted(0, true).is_none(), "it has been sent");
}

#[test]
fn what_is_held_back_goes_when_the_guest_has_left_some_and_not_when_it_has_taken_all() {
    for (head, sent) in [(1, 2), (2, 1)] {
        let mut scene = plain();
        scene.post(0);
        scene.post(0);
        scene.outbox.take_head(0, head);
        assert_eq!(scene.settle(), sent, "{head}");
    }
}

#[test]
fn a_guest_that_has_emptied_one_of_two_queues_is_told_of_the_other() {
    let mut scene = plain();
    scene.post(0);
    scene.post(1);
    scene.outbox.take_head(0, 1);
    assert_eq!(scene.settle(), 2);
}

#[test]
fn what_the_guest_has_taken_counts_no_more_for_what_the_host_wishes() {
    let wish = InterruptCoalescing::new().with_thr(1).with_time(255);
    let mut scene = Scene::new(wish);
    assert_eq!(scene.post(0), 0);
    scene.outbox.take_head(0, 1);
    assert_eq!((scene.post(0), scene.post(0)), (0, 1));
}

#[test]
fn the_head_matters_once_more_while_the_last_message_is_unanswered() {
    let mut scene = plain();
    let posted = scene.write(0);
    assert!(!scene.outbox.waits_for_head(&posted), "there was none");
    scene.outbox.interrupt(posted);
    let posted = scene.write(0);
    assert!(scene.outbox.waits_for_head(&posted));
    let last = Posted {
        more: false,
        ..posted
    };
    assert!(!scene.outbox.waits_for_head(&last), "a message goes anyway");
    scene.outbox.take_head(0, 1);
    assert!(!scene.outbox.waits_for_head(&posted), "it has answered");
}

#[test]
fn a_guest_that_rings_what_it_has_taken_before_has_nothing_to_take() {
    let mut scene = plain();
    scene.post(0);
    scene.post(0);
    let level = |scene: &Scene, rung| scene.mailbox.pending.level(0, |_| rung);
    assert!(level(&scene, 1));
    scene.outbox.take_head(0, 2);
    scene.outbox.take_head(0, 1);
    assert!(!level(&scene, 1));
}
