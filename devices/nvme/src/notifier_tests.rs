//! Tests of `notifier.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::doorbell_page::{DoorbellPage, Owner};
use crate::intx::Intx;
use crate::notifier::{ENGINE, Notifier, Task};
use crate::registers::{EngineRequest, Registers};

/// Interrupts that record only the level of the pin and the number of messages sent.
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

fn notifier(mode: InterruptMode) -> (Notifier, Arc<Seen>) {
    let seen = Arc::new(Seen {
        mode,
        pin: AtomicBool::new(false),
        messages: AtomicU32::new(0),
    });
    let doorbells = DoorbellPage::new(3, 0x4000).unwrap();
    let notifier = Notifier::new(
        Registers::new(None, None),
        doorbells,
        Intx::new(3),
        1,
        seen.clone(),
    )
    .unwrap();
    (notifier, seen)
}

/// A notifier whose queue 1 has an entry to take, so that the pin is up.
fn with_pin_up() -> (Notifier, Arc<Seen>) {
    let (notifier, seen) = notifier(InterruptMode::Pin);
    let doorbell = Doorbell::CompletionHead(1);
    notifier.doorbells.set_owner(doorbell, Some(WORKER));
    notifier.intx.open(1, 4, Some(0));
    notifier.intx.publish(1, 0, 1);
    notifier.update_pin();
    assert!(seen.pin.load(Ordering::Relaxed));
    (notifier, seen)
}

#[test]
fn ring_wakes_the_engine_once() {
    let (notifier, _) = notifier(InterruptMode::MsiX);
    let doorbell = Doorbell::SubmissionTail(0);
    notifier.doorbells.set_owner(doorbell, Some(ENGINE));
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| notifier.next(true, false, None));
        notifier.ring(doorbell, 5);
        assert_eq!(engine.join().unwrap(), Task::Queues);
    });
    assert_eq!(notifier.doorbells.value(doorbell), 5);
    assert_eq!(notifier.take_doorbell_errors(), (false, false));
    notifier.stop();
    assert_eq!(
        notifier.next(true, false, None),
        Task::Stop,
        "the ring has been taken"
    );
}

#[test]
fn ring_of_a_worker_queue_wakes_that_worker() {
    let (notifier, _) = notifier(InterruptMode::MsiX);
    let doorbell = Doorbell::SubmissionTail(1);
    notifier.doorbells.set_owner(doorbell, Some(WORKER));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !notifier.events(WORKER).take_notification() {
                notifier.events(WORKER).wait(None, || true);
            }
            notifier.doorbells.value(doorbell)
        });
        notifier.ring(doorbell, 3);
        assert_eq!(worker.join().unwrap(), 3);
    });
    assert!(!notifier.events(ENGINE).take_notification());
}

#[test]
fn invalid_doorbells_are_reported_to_the_engine_once() {
    let (notifier, _) = notifier(InterruptMode::MsiX);
    notifier.ring(Doorbell::CompletionHead(2), 7);
    assert_eq!(notifier.next(true, false, None), Task::Queues);
    assert_eq!(notifier.take_doorbell_errors(), (true, false));
    notifier.report_bad_value();
    assert_eq!(notifier.next(true, false, None), Task::Queues);
    assert_eq!(notifier.take_doorbell_errors(), (false, true));
    assert_eq!(notifier.take_doorbell_errors(), (false, false));
}

#[test]
fn registers_come_before_queues() {
    let (notifier, _) = notifier(InterruptMode::MsiX);
    let doorbell = Doorbell::SubmissionTail(0);
    notifier.doorbells.set_owner(doorbell, Some(ENGINE));
    notifier.ring(doorbell, 1);
    notifier.change(|registers| registers.write(0x14, 1));
    assert!(notifier.urgent());
    assert!(matches!(
        notifier.next(false, true, None),
        Task::Registers(EngineRequest::Enable(_))
    ));
    assert!(!notifier.urgent());
    assert_eq!(notifier.next(true, true, None), Task::Queues);
}

#[test]
fn access_that_may_end_an_interrupt_lowers_the_pin() {
    let (notifier, seen) = with_pin_up();
    let pin = || seen.pin.load(Ordering::Relaxed);
    let tail = Doorbell::SubmissionTail(1);
    notifier.doorbells.set_owner(tail, Some(WORKER));
    notifier.ring(tail, 1);
    assert!(pin(), "a new command ends nothing");
    notifier.ring(Doorbell::CompletionHead(1), 1);
    assert!(!pin());
    notifier.update_pin();
    assert!(!pin(), "it was the last entry");
    notifier.intx.publish(1, 1, 2);
    notifier.update_pin();
    assert!(pin());
    notifier.change(|registers| registers.write(0x0c, 1)); // NVME_REG_INTMS
    assert!(!pin());
    notifier.update_pin();
    assert!(!pin(), "masked");
}

#[test]
fn reset_ends_interrupts_and_commands_until_it_is_done() {
    let (notifier, seen) = with_pin_up();
    notifier.change(Registers::reset);
    assert!(notifier.quiet());
    notifier.update_pin();
    assert!(!seen.pin.load(Ordering::Relaxed));
    notifier.report(Registers::disabled);
    assert!(!notifier.quiet());
    let (notifier, seen) = self::notifier(InterruptMode::MsiX);
    notifier.change(Registers::reset);
    notifier.raise(0);
    assert_eq!(seen.messages.load(Ordering::Relaxed), 0);
    notifier.report(Registers::disabled);
    notifier.raise(0);
    assert_eq!(seen.messages.load(Ordering::Relaxed), 1);
}
