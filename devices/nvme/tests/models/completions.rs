//! The way of a completion: it is written, the guest is interrupted, takes it, and rings its queue's head doorbell, while
//! the worker goes on and the function may be reset.
//!
//! What is tried is the controller's own code; the guest, its memory and its interrupt controller are made here, and so is
//! the order in which a worker calls that code.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};
use zerocopy::FromZeros;

use crate::bell::Bell;
use crate::coalescing::Coalescing;
use crate::doorbells::{Doorbells, WORKER};
use crate::every_order;
use crate::mailbox::Mailbox;
use crate::messages::Messages;
use crate::outbox::Outbox;
use crate::pending::Pending;
use crate::queues::CompletionQueue;
use crate::registers::Registers;

/// Three pass as well, in half a minute.
const PREEMPTIONS: usize = 2;

/// Number and vector of the only queue, and how many entries it has.
const QUEUE: u16 = 1;
const ENTRIES: u32 = 4;
const HEAD: Doorbell = Doorbell::CompletionHead(QUEUE);

/// The guest's interrupt controller. It interrupts for each message, and whenever the pin goes up.
struct Line {
    mode: InterruptMode,
    interrupt: Bell,
    messages: AtomicU32,
    pin: AtomicBool,
    /// Nothing may come any more.
    over: AtomicBool,
}

impl Interrupts for Line {
    fn mode(&self) -> InterruptMode {
        self.mode
    }

    fn raise(&self, _vector: u16) {
        assert!(!self.over.load(Ordering::SeqCst), "a message too many");
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.interrupt.ring();
    }

    fn set_pin(&self, asserted: bool) {
        // Who lowers it must not look: loom tries a store before a load only if nobody has looked in between.
        if asserted {
            assert!(!self.over.load(Ordering::SeqCst), "the pin goes up again");
        }
        let was = self.pin.swap(asserted, Ordering::SeqCst);
        if asserted && !was {
            self.interrupt.ring();
        }
    }
}

/// When the guest tells how far it has taken entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rings {
    EachTime,
    AtTheEnd,
}

/// Commands that a worker carries out in one go.
#[derive(Clone, Copy)]
struct Batch {
    commands: u32,
    /// More of them follow in the next round.
    more: bool,
}

const ONE: Batch = Batch {
    commands: 1,
    more: false,
};
const ONE_OF_MORE: Batch = Batch { more: true, ..ONE };
const TWO: Batch = Batch { commands: 2, ..ONE };

/// A controller with one queue, and its guest.
struct Scene {
    mailbox: Arc<Mailbox>,
    line: Arc<Line>,
    /// Whether there is a new entry in each place of the queue.
    entries: [AtomicU32; ENTRIES as usize],
}

impl Scene {
    fn new(mode: InterruptMode) -> Arc<Self> {
        let line = Arc::new(Line {
            mode,
            interrupt: Bell::new().unwrap(),
            messages: AtomicU32::new(0),
            pin: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let (registers, pending) = (Registers::new(None), Pending::new(2));
        pending.open(QUEUE, ENTRIES, Some(QUEUE));
        let mailbox = Mailbox::new(registers, Doorbells::new(), pending, 1, line.clone());
        Arc::new(Self {
            mailbox: Arc::new(mailbox.unwrap()),
            line,
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
        })
    }

    /// The guest's interrupt handler: takes what there is from `head` on.
    fn handle(&self, mut head: u32) -> u32 {
        while head < ENTRIES && self.entries[head as usize].load(Ordering::Acquire) == 1 {
            head += 1;
        }
        head
    }

    /// The guest sleeps until it is interrupted, and has taken so many entries at the end. It says so each time, or not
    /// before it has all.
    fn take(&self, count: u32, rings: Rings) {
        let mut head = 0;
        while head < count {
            let pin_is_up = self.line.pin.load(Ordering::SeqCst);
            if !pin_is_up {
                self.line.interrupt.wait(None);
            }
            let next = self.handle(head);
            assert!(!pin_is_up || next > head, "the pin is up for nothing");
            if next != head && (rings == Rings::EachTime || next == count) {
                self.mailbox.ring(HEAD, next);
            }
            head = next;
        }
        assert_eq!(head, count);
    }
}

/// The worker that owns the queue.
struct Worker {
    scene: Arc<Scene>,
    outbox: Outbox,
    tail: usize,
}

impl Worker {
    fn new(scene: Arc<Scene>, wish: InterruptCoalescing) -> Self {
        let coalescing = Coalescing::new(2);
        coalescing.set(wish, &[false; 2]);
        let messages = Messages::new(2, Arc::new(coalescing));
        let mut outbox = Outbox::new(scene.mailbox.clone(), messages);
        outbox.add(QUEUE, CompletionQueue::new(0, ENTRIES, Some(QUEUE)));
        Self {
            scene,
            outbox,
            tail: 0,
        }
    }

    /// Carries out a batch of commands. The guest can see the completion of each before it is interrupted for all.
    fn post(&mut self, Batch { commands, more }: Batch) {
        for _ in 0..commands {
            let (_, queue) = self.outbox.queue(0).unwrap();
            queue.stage(CompletionEntry::new_zeroed(), Status::SUCCESS);
            self.scene.entries[self.tail].store(1, Ordering::Release);
            self.tail += 1;
            self.outbox.written(0);
        }
        let posted = self.outbox.posted(0, more).unwrap();
        if self.outbox.waits_for_head(&posted) {
            self.take_head();
        }
        self.outbox.interrupt(posted);
    }

    fn take_head(&mut self) {
        let head = self.scene.mailbox.doorbells.value(HEAD);
        self.outbox.take_head(0, head);
    }

    /// A round of work, with commands to carry out or without; whether the guest has completions left to take.
    fn round(&mut self, batch: Option<Batch>) -> bool {
        let mailbox = self.scene.mailbox.clone();
        if mailbox.take_knock(WORKER) {
            self.take_head();
            if mailbox.uses_pin() {
                mailbox.update_pin();
            }
            self.outbox.settle(false);
        }
        if let Some(batch) = batch {
            self.post(batch);
        }
        self.outbox.settle(batch.is_none());
        self.outbox.queue(0).unwrap().1.left() > 0
    }
}

/// The guest takes as many completions as a worker posts.
fn every_completion_is_taken(
    mode: InterruptMode,
    rings: Rings,
    wish: InterruptCoalescing,
    batches: &'static [Batch],
) {
    every_order(PREEMPTIONS, move || {
        let scene = Scene::new(mode);
        let guest = scene.clone();
        let guest = thread::spawn(move || {
            guest.take(batches.iter().map(|batch| batch.commands).sum(), rings);
            if guest.line.mode == InterruptMode::Pin {
                guest.line.over.store(true, Ordering::SeqCst);
            }
        });
        let mut worker = Worker::new(scene.clone(), wish);
        for batch in batches {
            worker.round(Some(*batch));
        }
        while worker.round(None) {
            scene.mailbox.sleep(WORKER, None, || true);
        }
        guest.join().unwrap();
        assert!(!scene.line.pin.load(Ordering::SeqCst));
    });
}

const NO_WISH: InterruptCoalescing = InterruptCoalescing::new();

#[test]
fn no_message_is_missed_that_was_held_back_while_the_guest_was_at_work() {
    for rings in [Rings::EachTime, Rings::AtTheEnd] {
        every_completion_is_taken(
            InterruptMode::MsiX,
            rings,
            NO_WISH,
            &[ONE_OF_MORE, ONE_OF_MORE],
        );
    }
}

#[test]
fn no_message_is_missed_if_part_of_a_batch_was_taken_before_it() {
    for (mode, batches) in [
        (InterruptMode::MsiX, &[TWO][..]),
        (InterruptMode::MsiX, &[ONE_OF_MORE, TWO]),
        (InterruptMode::Pin, &[TWO]),
    ] {
        every_completion_is_taken(mode, Rings::EachTime, NO_WISH, batches);
    }
}

#[test]
fn no_message_is_missed_that_the_host_wants_for_two() {
    let wish = NO_WISH.with_thr(1).with_time(255);
    every_completion_is_taken(InterruptMode::MsiX, Rings::EachTime, wish, &[ONE, ONE]);
}

#[test]
fn the_pin_is_up_for_what_is_left_and_not_once_all_is_taken() {
    every_completion_is_taken(
        InterruptMode::Pin,
        Rings::EachTime,
        NO_WISH,
        &[ONE_OF_MORE, ONE],
    );
}

#[test]
fn the_pin_that_another_thread_raises_is_up_for_something() {
    every_order(PREEMPTIONS, || {
        let scene = Scene::new(InterruptMode::Pin);
        let guest = scene.clone();
        let guest = thread::spawn(move || guest.take(1, Rings::EachTime));
        let engine = scene.clone();
        let engine = thread::spawn(move || engine.mailbox.update_pin());
        let mut worker = Worker::new(scene.clone(), NO_WISH);
        worker.round(Some(ONE));
        engine.join().unwrap();
        while worker.round(None) {
            scene.mailbox.sleep(WORKER, None, || true);
        }
        guest.join().unwrap();
        assert!(!scene.line.pin.load(Ordering::SeqCst));
    });
}

#[test]
fn a_queue_that_comes_is_not_taken_for_the_one_that_has_gone() {
    for entries in [2, 4] {
        every_order(PREEMPTIONS, move || {
            let pending = Arc::new(Pending::new(2));
            pending.open(QUEUE, 4, Some(QUEUE));
            pending.moved(QUEUE, 3, 2);
            let engine = pending.clone();
            let engine = thread::spawn(move || {
                engine.close(QUEUE);
                engine.open(QUEUE, entries, Some(QUEUE));
            });
            let [first, second] = [(); 2].map(|()| pending.level(0, |_| 0));
            assert!(first || !second, "the former queue's entries come back");
            engine.join().unwrap();
            assert!(!pending.level(0, |_| 0));
        });
    }
}

#[test]
fn nothing_comes_after_a_reset_has_been_answered() {
    for mode in [InterruptMode::MsiX, InterruptMode::Pin] {
        every_order(PREEMPTIONS, move || {
            let scene = Scene::new(mode);
            let guest = scene.clone();
            let guest = thread::spawn(move || {
                guest.mailbox.change(Registers::reset);
                assert!(!guest.line.pin.load(Ordering::SeqCst));
                guest.line.over.store(true, Ordering::SeqCst);
            });
            let mut worker = Worker::new(scene.clone(), NO_WISH);
            worker.post(ONE_OF_MORE);
            worker.post(ONE_OF_MORE);
            while !scene.mailbox.quiet() {
                thread::yield_now();
            }
            // The engine's turn.
            worker.outbox.forget();
            scene.mailbox.pending.close(QUEUE);
            scene.mailbox.report(Registers::disabled);
            worker.outbox.settle(true);
            scene.mailbox.update_pin();
            guest.join().unwrap();
            assert!(!scene.line.pin.load(Ordering::SeqCst));
        });
    }
}
