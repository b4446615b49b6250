//! Tests of `mailbox.rs`, which the models (`tests/models`) include without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::doorbells::{Doorbells, Owner};
use crate::mailbox::{ENGINE, Mailbox, Task};
use crate::pending::Pending;
use crate::registers::{Registers, Request};

/// Interrupts that only know the level of the pin and how many messages were sent.
struct Seen {
    mode: InterruptMode,
    pin: AtomicBool,
    messages: AtomicU32,
}

impl Interrupts for Seen {
    fn mode(&self) -> InterruptMode {
        self.mode
    }

    fn raise(&self, _vector: u16) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    fn set_pin(&self, asserted: bool) {
        self.pin.store(asserted, Ordering::Relaxed);
    }
}

const WORKER: Owner = Owner(1);

fn mailbox(mode: InterruptMode) -> (Mailbox, Arc<Seen>) {
    let seen = Arc::new(Seen {
        mode,
        pin: AtomicBool::new(false),
        messages: AtomicU32::new(0),
    });
    let doorbells = Doorbells::new(3, 0x4000).unwrap();
    let mailbox = Mailbox::new(
        Registers::new(None),
        doorbells,
        Pending::new(3),
        1,
        seen.clone(),
    )
    .unwrap();
    (mailbox, seen)
}

/// A mailbox whose queue 1 has an entry to take, so that the pin is up.
fn with_pin_up() -> (Mailbox, Arc<Seen>) {
    let (mailbox, seen) = mailbox(InterruptMode::Pin);
    let bell = Doorbell::CompletionHead(1);
    mailbox.doorbells.set_owner(bell, Some(WORKER));
    mailbox.pending.open(1, 4, Some(0));
    mailbox.pending.moved(1, 0, 1);
    mailbox.update_pin();
    assert!(seen.pin.load(Ordering::Relaxed));
    (mailbox, seen)
}

#[test]
fn a_ring_wakes_the_engine_once() {
    let (mailbox, _) = mailbox(InterruptMode::MsiX);
    let bell = Doorbell::SubmissionTail(0);
    mailbox.doorbells.set_owner(bell, Some(ENGINE));
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| mailbox.next(true, false));
        mailbox.ring(bell, 5);
        assert_eq!(engine.join().unwrap(), Task::Queues);
    });
    assert_eq!(mailbox.doorbells.value(bell), 5);
    assert_eq!(mailbox.take_doorbell_errors(), (false, false));
    mailbox.stop();
    assert_eq!(
        mailbox.next(true, false),
        Task::Stop,
        "the ring has been taken"
    );
}

#[test]
fn a_ring_of_a_worker_s_queue_wakes_that_worker() {
    let (mailbox, _) = mailbox(InterruptMode::MsiX);
    let bell = Doorbell::SubmissionTail(1);
    mailbox.doorbells.set_owner(bell, Some(WORKER));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !mailbox.take_knock(WORKER) {
                mailbox.sleep(WORKER, None, || true);
            }
            mailbox.doorbells.value(bell)
        });
        mailbox.ring(bell, 3);
        assert_eq!(worker.join().unwrap(), 3);
    });
    assert!(!mailbox.take_knock(ENGINE));
}

#[test]
fn wrong_doorbells_are_told_to_the_engine_once() {
    let (mailbox, _) = mailbox(InterruptMode::MsiX);
    mailbox.ring(Doorbell::CompletionHead(2), 7);
    assert_eq!(mailbox.next(true, false), Task::Queues);
    assert_eq!(mailbox.take_doorbell_errors(), (true, false));
    mailbox.tell_bad_value();
    assert_eq!(mailbox.next(true, false), Task::Queues);
    assert_eq!(mailbox.take_doorbell_errors(), (false, true));
    assert_eq!(mailbox.take_doorbell_errors(), (false, false));
}

#[test]
fn the_registers_come_before_the_queues() {
    let (mailbox, _) = mailbox(InterruptMode::MsiX);
    let bell = Doorbell::SubmissionTail(0);
    mailbox.doorbells.set_owner(bell, Some(ENGINE));
    mailbox.ring(bell, 1);
    mailbox.change(|registers| registers.write(0x14, 1));
    assert!(mailbox.urgent());
    assert!(matches!(
        mailbox.next(false, true),
        Task::Registers(Request::Enable(_))
    ));
    assert!(!mailbox.urgent());
    assert_eq!(mailbox.next(true, true), Task::Queues);
}

#[test]
fn an_access_that_may_end_an_interrupt_lowers_the_pin_before_it_is_answered() {
    let (mailbox, seen) = with_pin_up();
    let pin = || seen.pin.load(Ordering::Relaxed);
    let tail = Doorbell::SubmissionTail(1);
    mailbox.doorbells.set_owner(tail, Some(WORKER));
    mailbox.ring(tail, 1);
    assert!(pin(), "a new command ends nothing");
    mailbox.ring(Doorbell::CompletionHead(1), 1);
    assert!(!pin());
    mailbox.update_pin();
    assert!(!pin(), "it was the last entry");
    mailbox.pending.moved(1, 1, 2);
    mailbox.update_pin();
    assert!(pin());
    mailbox.change(|registers| registers.write(0x0c, 1)); // NVME_REG_INTMS
    assert!(!pin());
    mailbox.update_pin();
    assert!(!pin(), "masked");
}

#[test]
fn a_reset_ends_all_interrupts_and_commands_until_the_engine_has_done_it() {
    let (mailbox, seen) = with_pin_up();
    mailbox.change(Registers::reset);
    assert!(mailbox.quiet());
    mailbox.update_pin();
    assert!(!seen.pin.load(Ordering::Relaxed));
    mailbox.report(Registers::disabled);
    assert!(!mailbox.quiet());
    let (mailbox, seen) = self::mailbox(InterruptMode::MsiX);
    mailbox.change(Registers::reset);
    mailbox.raise(0);
    assert_eq!(seen.messages.load(Ordering::Relaxed), 0);
    mailbox.report(Registers::disabled);
    mailbox.raise(0);
    assert_eq!(seen.messages.load(Ordering::Relaxed), 1);
}
