//! The path of a completion: it is flushed, the guest is interrupted, takes it, and rings the head
//! doorbell of its queue, while the worker continues and the function may be reset.
//!
//! The models run the controller's own code. The guest, its memory, its interrupt controller and
//! the order of a worker's calls are modelled here.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use loom::thread;
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::feature::InterruptCoalescing;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts, Iova};
use zerocopy::FromZeros;

use super::every_order;
use crate::doorbell_page::{DoorbellPage, Owner};
use crate::intx::Intx;
use crate::io_queue::completion::CompletionQueue;
use crate::io_queue::doorbell::GuestWords;
use crate::io_queue::interrupt::{Coalescing, Next, QueueInterrupts};
use crate::io_queue::ring::Ring;
use crate::notifier::Notifier;
use crate::registers::Registers;
use crate::sync::{AtomicBool, AtomicU32, EventFd, Ordering};

const PREEMPTIONS: usize = 2;

/// Number and vector of the only queue, and the number of its entries.
const QUEUE: u16 = 1;
const ENTRIES: u32 = 4;
const HEAD: Doorbell = Doorbell::CompletionHead(QUEUE);

const WORKER: Owner = Owner(1);

/// The doorbell is a register: no guest memory is used.
struct NoMemory;

impl GuestWords for NoMemory {
    fn load(&mut self, _address: Iova) -> Option<u32> {
        None
    }

    fn store(&mut self, _address: Iova, _value: u32) -> bool {
        false
    }
}

/// The guest's interrupt controller. It interrupts for each message, and each time the pin is
/// asserted.
struct Line {
    mode: InterruptMode,
    interrupt: EventFd,
    messages: AtomicU32,
    pin: AtomicBool,
    /// No further interrupt may be raised.
    over: AtomicBool,
}

impl Interrupts for Line {
    fn mode(&self) -> InterruptMode {
        self.mode
    }

    fn raise(&self, _vector: u16) {
        assert!(!self.over.load(Ordering::SeqCst), "a message too many");
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.interrupt.signal();
    }

    fn set_pin(&self, asserted: bool) {
        // No load when the pin is lowered: loom tries a store before a load only if there is no
        // load in between.
        if asserted {
            assert!(!self.over.load(Ordering::SeqCst), "the pin goes up again");
        }
        let was = self.pin.swap(asserted, Ordering::SeqCst);
        if asserted && !was {
            self.interrupt.signal();
        }
    }
}

/// The time at which the guest rings the head doorbell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rings {
    EachTime,
    AtTheEnd,
}

/// A controller with one queue, and its guest.
struct Fixture {
    notifier: Arc<Notifier>,
    line: Arc<Line>,
    /// 1 at each index of the queue with a new entry.
    entries: [AtomicU32; ENTRIES as usize],
}

impl Fixture {
    fn new(mode: InterruptMode) -> Arc<Self> {
        let line = Arc::new(Line {
            mode,
            interrupt: EventFd::new().unwrap(),
            messages: AtomicU32::new(0),
            pin: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let intx = Intx::new(2);
        intx.open(QUEUE, ENTRIES, Some(QUEUE));
        let page = DoorbellPage::new(2, 0x4000).unwrap();
        page.set_owner(HEAD, Some(WORKER));
        let notifier = Notifier::new(Registers::new(None, None), page, intx, 1, line.clone());
        Arc::new(Self {
            notifier: Arc::new(notifier.unwrap()),
            line,
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
        })
    }

    /// The guest's interrupt handler: takes the new entries from `head` on. Returns the new head.
    fn handle(&self, mut head: u32) -> u32 {
        while head < ENTRIES && self.entries[head as usize].load(Ordering::Acquire) == 1 {
            head += 1;
        }
        head
    }

    /// The guest sleeps until it is interrupted, and takes `count` entries. It rings each time, or
    /// only after the last.
    fn take(&self, count: u32, rings: Rings) {
        let mut head = 0;
        while head < count {
            let pin_is_up = self.line.pin.load(Ordering::SeqCst);
            if !pin_is_up {
                self.line.interrupt.wait(None);
            }
            let next = self.handle(head);
            assert!(!pin_is_up || next > head, "the pin is up without an entry");
            if next != head && (rings == Rings::EachTime || next == count) {
                self.notifier.ring(HEAD, next);
            }
            head = next;
        }
        assert_eq!(head, count);
    }
}

/// Time stands still: the models do not depend on the aggregation time.
fn clock() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START
}

/// The worker that owns the queue.
struct Worker {
    fixture: Arc<Fixture>,
    queue: CompletionQueue,
    interrupts: QueueInterrupts,
    tail: usize,
}

impl Worker {
    fn new(fixture: Arc<Fixture>, settings: InterruptCoalescing) -> Self {
        let coalescing = Coalescing::new(2);
        coalescing.set(settings, &[false; 2]);
        let notifier = fixture.notifier.clone();
        let page = notifier.doorbells.clone();
        let ring = Ring {
            base: Iova(0),
            entries: ENTRIES,
        };
        let mut interrupts = QueueInterrupts::new(notifier, Arc::new(coalescing));
        interrupts.clock = clock;
        Self {
            fixture,
            queue: CompletionQueue::new(QUEUE, Some(QUEUE), ring, page),
            interrupts,
            tail: 0,
        }
    }

    /// Executes a batch of commands. The guest can see the completion of each before it is
    /// interrupted for all.
    fn post(&mut self, commands: u32) {
        for _ in 0..commands {
            let permit = self.queue.reserve().unwrap();
            let entry = CompletionEntry::new_zeroed();
            self.queue.stage(permit, entry, Status::SUCCESS);
            let visible = &self.fixture.entries[self.tail];
            let flushed = self.queue.flush(&self.interrupts, |_, _, _| {
                visible.store(1, Ordering::Release);
                Ok(())
            });
            flushed.unwrap();
            self.tail += 1;
        }
        self.signal(Next::Work);
    }

    fn signal(&mut self, next: Next) {
        self.queue.take_answer(&self.interrupts, &mut NoMemory);
        self.queue.signal(&self.interrupts, next);
    }

    fn take_head(&mut self) {
        self.queue.take_head(&self.interrupts, &mut NoMemory);
    }

    /// Does a round of work, with commands to execute or without. Returns `true` if the guest has
    /// completions left to take.
    fn round(&mut self, batch: Option<u32>) -> bool {
        let notifier = self.fixture.notifier.clone();
        if notifier.events(WORKER).take_notification() {
            self.take_head();
            if notifier.uses_pin() {
                notifier.update_pin();
            }
        }
        if let Some(batch) = batch {
            self.post(batch);
        }
        let next = batch.map_or(Next::Wait, |_| Next::Work);
        self.signal(next);
        self.queue.unread() > 0
    }
}

/// Checks that the guest takes as many completions as a worker posts.
fn every_completion_is_taken(
    mode: InterruptMode,
    rings: Rings,
    settings: InterruptCoalescing,
    batches: &'static [u32],
) {
    every_order(PREEMPTIONS, move || {
        let fixture = Fixture::new(mode);
        let guest = fixture.clone();
        let guest = thread::spawn(move || {
            guest.take(batches.iter().sum(), rings);
            if guest.line.mode == InterruptMode::Pin {
                guest.line.over.store(true, Ordering::SeqCst);
            }
        });
        let mut worker = Worker::new(fixture.clone(), settings);
        for batch in batches {
            worker.round(Some(*batch));
        }
        while worker.round(None) {
            fixture.notifier.events(WORKER).wait(None, || true);
        }
        guest.join().unwrap();
        assert!(!fixture.line.pin.load(Ordering::SeqCst));
    });
}

const NO_COALESCING: InterruptCoalescing = InterruptCoalescing::new();

#[test]
fn interrupt_pending_for_a_busy_guest_is_not_missed() {
    for rings in [Rings::EachTime, Rings::AtTheEnd] {
        every_completion_is_taken(InterruptMode::MsiX, rings, NO_COALESCING, &[1, 1]);
    }
}

#[test]
fn interrupt_of_a_batch_taken_in_part_is_not_missed() {
    for (mode, batches) in [
        (InterruptMode::MsiX, &[2][..]),
        (InterruptMode::MsiX, &[1, 2]),
        (InterruptMode::Pin, &[2]),
    ] {
        every_completion_is_taken(mode, Rings::EachTime, NO_COALESCING, batches);
    }
}

#[test]
fn coalesced_interrupt_is_not_missed() {
    let settings = NO_COALESCING.with_thr(1).with_time(255);
    every_completion_is_taken(InterruptMode::MsiX, Rings::EachTime, settings, &[1, 1]);
}

#[test]
fn pin_is_up_until_every_entry_is_taken() {
    every_completion_is_taken(InterruptMode::Pin, Rings::EachTime, NO_COALESCING, &[1, 1]);
}

#[test]
fn pin_raised_by_another_thread_is_up_for_an_entry() {
    every_order(PREEMPTIONS, || {
        let fixture = Fixture::new(InterruptMode::Pin);
        let guest = fixture.clone();
        let guest = thread::spawn(move || guest.take(1, Rings::EachTime));
        let engine = fixture.clone();
        let engine = thread::spawn(move || engine.notifier.update_pin());
        let mut worker = Worker::new(fixture.clone(), NO_COALESCING);
        worker.round(Some(1));
        engine.join().unwrap();
        while worker.round(None) {
            fixture.notifier.events(WORKER).wait(None, || true);
        }
        guest.join().unwrap();
        assert!(!fixture.line.pin.load(Ordering::SeqCst));
    });
}

#[test]
fn new_queue_is_not_taken_for_the_deleted_one() {
    for entries in [2, 4] {
        every_order(PREEMPTIONS, move || {
            let intx = Arc::new(Intx::new(2));
            intx.open(QUEUE, 4, Some(QUEUE));
            intx.publish(QUEUE, 3, 2);
            let engine = intx.clone();
            let engine = thread::spawn(move || {
                engine.close(QUEUE);
                engine.open(QUEUE, entries, Some(QUEUE));
            });
            let [first, second] = [(); 2].map(|()| intx.level(0, |_| 0));
            assert!(
                first || !second,
                "the entries of the former queue are seen again"
            );
            engine.join().unwrap();
            assert!(!intx.level(0, |_| 0));
        });
    }
}

#[test]
fn no_interrupt_is_raised_after_a_reset_is_answered() {
    for mode in [InterruptMode::MsiX, InterruptMode::Pin] {
        every_order(PREEMPTIONS, move || {
            let fixture = Fixture::new(mode);
            let guest = fixture.clone();
            let guest = thread::spawn(move || {
                guest.notifier.change(Registers::reset);
                assert!(!guest.line.pin.load(Ordering::SeqCst));
                guest.line.over.store(true, Ordering::SeqCst);
            });
            let mut worker = Worker::new(fixture.clone(), NO_COALESCING);
            worker.post(1);
            worker.post(1);
            while !fixture.notifier.quiet() {
                thread::yield_now();
            }
            // The engine's turn: the worker forgets the queue, and its interrupt with it.
            fixture.notifier.intx.close(QUEUE);
            fixture.notifier.report(Registers::disabled);
            fixture.notifier.update_pin();
            guest.join().unwrap();
            assert!(!fixture.line.pin.load(Ordering::SeqCst));
        });
    }
}
