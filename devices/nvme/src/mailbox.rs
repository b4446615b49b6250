//! What the thread that answers the guest's accesses and the engine's thread say to each other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::registers::{Registers, Request};

/// What the engine should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The registers ask for something.
    Registers(Request),
    /// A doorbell has been rung since the last time, or the engine said that it has work left.
    Queues,
}

/// One doorbell: the last value written, and whether its queue exists.
#[derive(Default)]
struct Bell {
    value: AtomicU32,
    live: AtomicBool,
}

/// Registers and doorbells, and the engine's alarm clock.
///
/// The engine looks at its inbox with the lock held before it sleeps, and whoever adds to the inbox takes the lock
/// before it wakes the engine, so no wake-up is lost.
///
/// Interrupts are raised with the lock held as well. The guest takes the INTx pin for what it is at the moment when its
/// own access has been answered: an access that may end an interrupt lowers the pin before that, and the engine, which
/// knows what is left to take, raises it again.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    interrupts: Arc<dyn Interrupts>,
    wake: Condvar,
    /// Something other than a doorbell waits: looked at between any two commands, without the lock.
    urgent: AtomicBool,
    tails: Vec<Bell>,
    heads: Vec<Bell>,
    stray: AtomicBool,
}

struct State {
    registers: Registers,
    rung: bool,
    stop: bool,
}

impl Mailbox {
    /// A mailbox with doorbells for `queues` queue pairs, the admin queues included.
    pub(crate) fn new(registers: Registers, queues: u16, interrupts: Arc<dyn Interrupts>) -> Self {
        let bells = || (0..queues).map(|_| Bell::default()).collect();
        Self {
            state: Mutex::new(State {
                registers,
                rung: false,
                stop: false,
            }),
            interrupts,
            wake: Condvar::new(),
            urgent: AtomicBool::new(false),
            tails: bells(),
            heads: bells(),
            stray: AtomicBool::new(false),
        }
    }

    /// Looks at the registers.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Registers) -> R) -> R {
        look(&self.lock().registers)
    }

    /// Changes the registers and has the engine look at them, at the level of the pin too.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.registers);
        self.interrupts.set_pin(false);
        state.rung = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
        result
    }

    /// The engine's own change of the registers, of which it needs no telling.
    pub(crate) fn report<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        change(&mut self.lock().registers)
    }

    /// The guest rings a doorbell.
    pub(crate) fn ring(&self, doorbell: Doorbell, value: u32) {
        match self
            .bell(doorbell)
            .filter(|bell| bell.live.load(Ordering::Acquire))
        {
            Some(bell) => bell.value.store(value, Ordering::Release),
            None => self.stray.store(true, Ordering::Release),
        }
        let mut state = self.lock();
        if matches!(doorbell, Doorbell::CompletionHead(_)) {
            self.interrupts.set_pin(false);
        }
        state.rung = true;
        self.wake.notify_one();
    }

    /// Whether the guest takes interrupts as MSI-X messages.
    pub(crate) fn sends_messages(&self) -> bool {
        self.interrupts.mode() == InterruptMode::MsiX
    }

    /// Sends the message of a vector, unless the function has been reset since.
    pub(crate) fn send_message(&self, vector: u16) {
        let state = self.lock();
        if !state.registers.is_disabling() {
            self.interrupts.raise(vector);
        }
    }

    /// Sets the pin to what `level` finds, given the interrupt mask. No doorbell is rung meanwhile.
    pub(crate) fn set_pin(&self, level: impl FnOnce(u32) -> bool) {
        let state = self.lock();
        let asserted = !state.registers.is_disabling() && level(state.registers.interrupt_mask());
        self.interrupts.set_pin(asserted);
    }

    /// The last value written to the doorbell of a queue that exists.
    pub(crate) fn rung(&self, doorbell: Doorbell) -> Option<u32> {
        self.bell(doorbell)
            .map(|bell| bell.value.load(Ordering::Acquire))
    }

    /// A queue comes or goes: its doorbell starts from 0, and rings of it count or are strays.
    pub(crate) fn set_live(&self, doorbell: Doorbell, live: bool) {
        if let Some(bell) = self.bell(doorbell) {
            bell.value.store(0, Ordering::Release);
            bell.live.store(live, Ordering::Release);
        }
    }

    /// Whether a doorbell of no queue has been rung since the last time.
    pub(crate) fn take_stray(&self) -> bool {
        self.stray.swap(false, Ordering::AcqRel)
    }

    /// Whether the engine should stop taking commands and ask for its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// The next task; waits for one, unless the engine has work left (`busy`).
    pub(crate) fn next(&self, enabled: bool, busy: bool) -> Task {
        let mut state = self.lock();
        loop {
            self.urgent.store(false, Ordering::Release);
            if state.stop {
                return Task::Stop;
            }
            if let Some(request) = state.registers.request(enabled) {
                return Task::Registers(request);
            }
            if std::mem::take(&mut state.rung) || busy {
                return Task::Queues;
            }
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the engine after the command in progress.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn bell(&self, doorbell: Doorbell) -> Option<&Bell> {
        match doorbell {
            Doorbell::SubmissionTail(queue) => self.tails.get(usize::from(queue)),
            Doorbell::CompletionHead(queue) => self.heads.get(usize::from(queue)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interrupts that only know the level of the pin and how many messages were sent.
    #[derive(Default)]
    struct Seen {
        pin: AtomicBool,
        messages: AtomicU32,
    }

    impl Interrupts for Seen {
        fn mode(&self) -> InterruptMode {
            InterruptMode::Pin
        }

        fn raise(&self, _vector: u16) {
            self.messages.fetch_add(1, Ordering::Relaxed);
        }

        fn set_pin(&self, asserted: bool) {
            self.pin.store(asserted, Ordering::Relaxed);
        }
    }

    fn mailbox() -> Mailbox {
        Mailbox::new(Registers::new(None), 3, Arc::new(Seen::default()))
    }

    #[test]
    fn a_ring_wakes_the_engine_once() {
        let mailbox = mailbox();
        mailbox.set_live(Doorbell::SubmissionTail(1), true);
        std::thread::scope(|scope| {
            let engine = scope.spawn(|| mailbox.next(true, false));
            mailbox.ring(Doorbell::SubmissionTail(1), 5);
            assert_eq!(engine.join().unwrap(), Task::Queues);
        });
        assert_eq!(mailbox.rung(Doorbell::SubmissionTail(1)), Some(5));
        assert!(!mailbox.take_stray());
        mailbox.stop();
        assert_eq!(
            mailbox.next(true, false),
            Task::Stop,
            "the ring has been taken"
        );
    }

    #[test]
    fn rings_of_queues_that_do_not_exist_are_strays_and_leave_no_value() {
        let mailbox = mailbox();
        for doorbell in [
            Doorbell::CompletionHead(2),
            Doorbell::SubmissionTail(3),
            Doorbell::SubmissionTail(u16::MAX),
        ] {
            mailbox.ring(doorbell, 7);
            assert!(mailbox.take_stray(), "{doorbell:?}");
        }
        mailbox.set_live(Doorbell::CompletionHead(2), true);
        assert_eq!(mailbox.rung(Doorbell::CompletionHead(2)), Some(0));
    }

    #[test]
    fn the_registers_come_before_the_queues() {
        let mailbox = mailbox();
        mailbox.ring(Doorbell::SubmissionTail(0), 1);
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
        let seen = Arc::new(Seen::default());
        let mailbox = Mailbox::new(Registers::new(None), 3, seen.clone());
        let pin = || seen.pin.load(Ordering::Relaxed);
        mailbox.set_live(Doorbell::CompletionHead(1), true);
        mailbox.set_pin(|_| true);
        mailbox.ring(Doorbell::SubmissionTail(1), 1);
        assert!(pin(), "a new command ends nothing");
        mailbox.ring(Doorbell::CompletionHead(1), 1);
        assert!(!pin());
        mailbox.set_pin(|_| true);
        mailbox.change(|registers| registers.write(0x0c, 1)); // NVME_REG_INTMS
        assert!(!pin());
        mailbox.set_pin(|mask| mask == 1);
        assert!(pin());
    }

    #[test]
    fn a_reset_ends_all_interrupts_until_the_engine_has_done_it() {
        let seen = Arc::new(Seen::default());
        let mailbox = Mailbox::new(Registers::new(None), 3, seen.clone());
        mailbox.set_pin(|_| true);
        mailbox.change(Registers::reset);
        mailbox.send_message(0);
        mailbox.set_pin(|_| true);
        assert!(!seen.pin.load(Ordering::Relaxed));
        assert_eq!(seen.messages.load(Ordering::Relaxed), 0);
        mailbox.report(Registers::disabled);
        mailbox.send_message(0);
        assert_eq!(seen.messages.load(Ordering::Relaxed), 1);
    }
}
