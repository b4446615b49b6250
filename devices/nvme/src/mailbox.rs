//! What the thread that answers the guest's accesses, the engine and the workers say to each other.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::doorbells::{Doorbells, Owner};
use crate::pending::Pending;
use crate::registers::{Registers, Request};

/// The engine's number among the owners of queues.
pub(crate) const ENGINE: Owner = Owner(0);

/// What the engine should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The registers ask for something.
    Registers(Request),
    /// An admin doorbell has been rung since the last time, or a doorbell wrongly, or the engine said that it has work
    /// left.
    Queues,
}

/// Registers, doorbells and interrupts, and the alarm clock of every thread.
///
/// Interrupts are raised with the registers' lock held. The guest takes the INTx pin for what it is at the moment when
/// its own access has been answered: an access that may end an interrupt lowers the pin before that, and the queue's
/// owner, which knows what is left to take, raises it again.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    interrupts: Arc<dyn Interrupts>,
    pub(crate) doorbells: Doorbells,
    pub(crate) pending: Pending,
    /// By owner.
    alarms: Vec<Alarm>,
    /// The engine should look at the registers: looked at between any two commands, without the lock.
    urgent: AtomicBool,
    /// No command is to be taken: a reset has begun, or the controller has failed.
    quiet: AtomicBool,
    stray: AtomicBool,
    bad_value: AtomicBool,
}

struct State {
    registers: Registers,
    stop: bool,
}

impl Mailbox {
    /// A mailbox for an engine and so many workers.
    pub(crate) fn new(
        registers: Registers,
        doorbells: Doorbells,
        pending: Pending,
        workers: u8,
        interrupts: Arc<dyn Interrupts>,
    ) -> io::Result<Self> {
        let alarms = (0..=workers).map(|_| Ok(Alarm::new(Bell::new()?)));
        Ok(Self {
            alarms: alarms.collect::<io::Result<_>>()?,
            state: Mutex::new(State {
                registers,
                stop: false,
            }),
            interrupts,
            doorbells,
            pending,
            urgent: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            stray: AtomicBool::new(false),
            bad_value: AtomicBool::new(false),
        })
    }

    /// Looks at the registers.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Registers) -> R) -> R {
        look(&self.lock().registers)
    }

    /// Changes the registers and has the engine look at them, and at the level of the pin.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.registers);
        self.note_quiet(&state);
        self.interrupts.set_pin(false);
        self.alert();
        result
    }

    /// The engine's own change of the registers, or a worker's, of which the engine needs no telling.
    pub(crate) fn report<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.registers);
        self.note_quiet(&state);
        result
    }

    fn note_quiet(&self, state: &State) {
        self.quiet
            .store(state.registers.is_quiet(), Ordering::Release);
    }

    /// The guest rings a doorbell, by an access that is answered.
    pub(crate) fn ring(&self, doorbell: Doorbell, value: u32) {
        let owner = self.doorbells.ring(doorbell, value);
        if owner.is_none() {
            self.stray.store(true, Ordering::Release);
        }
        if matches!(doorbell, Doorbell::CompletionHead(_)) && !self.sends_messages() {
            let _state = self.lock();
            self.interrupts.set_pin(false);
        }
        self.knock(owner.unwrap_or(ENGINE));
    }

    /// The bell that wakes a thread whenever it is rung.
    pub(crate) fn bell(&self, owner: Owner) -> Option<&Bell> {
        self.alarm(owner).map(Alarm::bell)
    }

    /// Has a thread look at its doorbells and orders.
    pub(crate) fn knock(&self, owner: Owner) {
        if let Some(alarm) = self.alarm(owner) {
            alarm.knock();
        }
    }

    /// Whether a thread has been told to look at its doorbells and orders since the last time; to be taken before it looks.
    pub(crate) fn take_knock(&self, owner: Owner) -> bool {
        self.alarm(owner).is_some_and(Alarm::take_knock)
    }

    /// Sleeps until woken or until the moment given, if nobody has knocked and there is nothing to do. It may return early.
    pub(crate) fn sleep(&self, owner: Owner, until: Option<Instant>, idle: impl FnOnce() -> bool) {
        if let Some(alarm) = self.alarm(owner) {
            alarm.sleep(until, idle);
        }
    }

    fn alarm(&self, owner: Owner) -> Option<&Alarm> {
        self.alarms.get(usize::from(owner.0))
    }

    /// A worker has met a doorbell with a value that its queue cannot have.
    pub(crate) fn tell_bad_value(&self) {
        self.bad_value.store(true, Ordering::Release);
        self.knock(ENGINE);
    }

    /// Whether, since the last time, a doorbell of no queue has been rung, and one with a value that its queue cannot
    /// have.
    pub(crate) fn take_doorbell_errors(&self) -> (bool, bool) {
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::AcqRel);
        (take(&self.stray), take(&self.bad_value))
    }

    /// Whether the guest takes interrupts by the INTx pin.
    pub(crate) fn uses_pin(&self) -> bool {
        self.interrupts.mode() == InterruptMode::Pin
    }

    /// Whether the guest takes interrupts as MSI-X messages.
    pub(crate) fn sends_messages(&self) -> bool {
        self.interrupts.mode() == InterruptMode::MsiX
    }

    /// Interrupts for entries that have been posted to a queue with this vector, unless the function has been reset since.
    pub(crate) fn raise(&self, vector: u16) {
        if !self.sends_messages() {
            return self.update_pin();
        }
        let state = self.lock();
        if !state.registers.is_disabling() {
            self.interrupts.raise(vector);
        }
    }

    /// Sets the level of the INTx pin by what the guest has left to take at this very moment. No doorbell is rung
    /// meanwhile.
    pub(crate) fn update_pin(&self) {
        let state = self.lock();
        let registers = &state.registers;
        let asserted = self.interrupts.mode() == InterruptMode::Pin
            && !registers.is_disabling()
            && self.pending.level(registers.interrupt_mask(), |queue| {
                self.doorbells.value(Doorbell::CompletionHead(queue))
            });
        self.interrupts.set_pin(asserted);
    }

    /// Whether the engine should stop taking commands and ask for its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// Whether no command is to be taken, and those that have been taken are to be forgotten.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet.load(Ordering::Acquire)
    }

    /// The engine's next task; waits for one, unless the engine has work left (`busy`).
    pub(crate) fn next(&self, enabled: bool, busy: bool) -> Task {
        loop {
            if let Some(task) = self.next_urgent(enabled) {
                return task;
            }
            if self.take_knock(ENGINE) || busy {
                return Task::Queues;
            }
            self.sleep(ENGINE, None, || !self.urgent());
        }
    }

    fn next_urgent(&self, enabled: bool) -> Option<Task> {
        let state = self.lock();
        self.urgent.store(false, Ordering::Release);
        if state.stop {
            return Some(Task::Stop);
        }
        state.registers.request(enabled).map(Task::Registers)
    }

    /// Ends the engine after the command in progress.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.alert();
    }

    /// Has the engine look at the registers, and the workers whether somebody still waits for their commands to come to
    /// their end.
    fn alert(&self) {
        self.urgent.store(true, Ordering::Release);
        self.alarms.iter().for_each(Alarm::knock);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

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
}
