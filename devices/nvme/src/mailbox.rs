//! What the thread that answers the guest's accesses, the engine and the workers say to each other.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::doorbells::{Doorbells, Owner};
use crate::pending::Pending;
use crate::registers::{Registers, Request};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

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
    /// The engine should look at the registers. Like `quiet` it is looked at between any two commands, without the lock, and
    /// with no order: it tells of nothing but itself. The registers are looked at under their lock, queues come and go by
    /// orders, and who must not miss a change is knocked for.
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
            .store(state.registers.is_quiet(), Ordering::Relaxed);
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
        self.urgent.load(Ordering::Relaxed)
    }

    /// Whether no command is to be taken, and those that have been taken are to be forgotten.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
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
        self.urgent.store(false, Ordering::Relaxed);
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
        self.urgent.store(true, Ordering::Relaxed);
        self.alarms.iter().for_each(Alarm::knock);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
