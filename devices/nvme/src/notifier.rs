//! The state that the engine, the workers and the thread that answers the guest's accesses share:
//! registers, doorbells, interrupts, and an event count for each thread.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{InterruptMode, Interrupts};

use crate::doorbell_page::{DoorbellPage, Owner};
use crate::event_count::EventCount;
use crate::intx::Intx;
use crate::registers::{EngineRequest, Registers};
use crate::sync::{AtomicBool, EventFd, Mutex, MutexGuard, Ordering};

/// The engine as an owner of queues.
pub(crate) const ENGINE: Owner = Owner(0);

/// The engine's next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The registers have a request.
    Registers(EngineRequest),
    /// An admin doorbell has been rung since the last task, or an invalid doorbell, or the engine
    /// has work left.
    Queues,
}

/// Registers, doorbells, interrupts and the event counts of all threads.
///
/// Interrupts are raised while the registers' lock is held. The guest reads the level of the INTx
/// pin once its own access has been answered. So an access that may end an interrupt lowers the pin
/// before the answer, and the queue's owner raises it again if entries are left to take.
pub(crate) struct Notifier {
    state: Mutex<NotifierState>,
    interrupts: Arc<dyn Interrupts>,
    pub(crate) doorbells: Arc<DoorbellPage>,
    pub(crate) intx: Intx,
    /// The event counts, by owner.
    engine: EventCount,
    workers: Vec<EventCount>,
    /// The engine should read the registers. Like `quiet`, this flag is read between any two
    /// commands, without the lock and relaxed, since no other access depends on its order: the
    /// registers are read under their lock, queues are created and deleted by requests, and a
    /// thread that must not miss a change is notified.
    urgent: AtomicBool,
    /// No command may be fetched: a reset has begun, or the controller has failed.
    quiet: AtomicBool,
    stray: AtomicBool,
    bad_value: AtomicBool,
}

struct NotifierState {
    registers: Registers,
    stop: bool,
}

impl Notifier {
    /// Makes a notifier for an engine and `workers` workers.
    pub(crate) fn new(
        registers: Registers,
        doorbells: DoorbellPage,
        intx: Intx,
        workers: u8,
        interrupts: Arc<dyn Interrupts>,
    ) -> io::Result<Self> {
        let events = || Ok(EventCount::new(EventFd::new()?));
        Ok(Self {
            engine: events()?,
            workers: (0..workers).map(|_| events()).collect::<io::Result<_>>()?,
            state: Mutex::new(NotifierState {
                registers,
                stop: false,
            }),
            interrupts,
            doorbells: Arc::new(doorbells),
            intx,
            urgent: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            stray: AtomicBool::new(false),
            bad_value: AtomicBool::new(false),
        })
    }

    /// Reads the registers.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Registers) -> R) -> R {
        read(&self.lock().registers)
    }

    /// Changes the registers for the guest, lowers the pin, and notifies every thread.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.registers);
        self.update_quiet(&state);
        self.interrupts.set_pin(false);
        self.notify_all();
        result
    }

    /// Changes the registers for the engine or a worker, without a notification.
    pub(crate) fn report<R>(&self, change: impl FnOnce(&mut Registers) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.registers);
        self.update_quiet(&state);
        result
    }

    fn update_quiet(&self, state: &NotifierState) {
        self.quiet
            .store(state.registers.is_quiet(), Ordering::Relaxed);
    }

    /// Rings a doorbell for the guest, whose access is not posted.
    pub(crate) fn ring(&self, doorbell: Doorbell, value: u32) {
        let owner = self.doorbells.ring(doorbell, value);
        if owner.is_none() {
            self.stray.store(true, Ordering::Release);
        }
        if matches!(doorbell, Doorbell::CompletionHead(_)) && !self.sends_messages() {
            let _state = self.lock();
            self.interrupts.set_pin(false);
        }
        self.events(owner.unwrap_or(ENGINE)).notify();
    }

    /// Returns the event count of a thread. A notified thread polls its doorbells and requests.
    pub(crate) fn events(&self, owner: Owner) -> &EventCount {
        let worker = usize::from(owner.0).checked_sub(1);
        let worker = worker.and_then(|index| self.workers.get(index));
        worker.unwrap_or(&self.engine)
    }

    /// Records that a queue's owner has read a doorbell value that is invalid for the queue.
    pub(crate) fn report_bad_value(&self) {
        self.bad_value.store(true, Ordering::Release);
        self.engine.notify();
    }

    /// Returns two flags for the time since the last call: a doorbell without a queue has been
    /// rung, and a doorbell has been rung with an invalid value.
    pub(crate) fn take_doorbell_errors(&self) -> (bool, bool) {
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::AcqRel);
        (take(&self.stray), take(&self.bad_value))
    }

    /// Returns `true` if the guest takes interrupts by the INTx pin.
    pub(crate) fn uses_pin(&self) -> bool {
        self.interrupts.mode() == InterruptMode::Pin
    }

    /// Returns `true` if the guest takes interrupts as MSI-X messages.
    pub(crate) fn sends_messages(&self) -> bool {
        self.interrupts.mode() == InterruptMode::MsiX
    }

    /// Raises the interrupt for entries that have been posted to a queue with this vector, unless
    /// the function has been reset since.
    pub(crate) fn raise(&self, vector: u16) {
        if !self.sends_messages() {
            return self.update_pin();
        }
        let state = self.lock();
        if !state.registers.is_disabling() {
            self.interrupts.raise(vector);
        }
    }

    /// Sets the level of the INTx pin according to the entries that the guest has left to take. The
    /// lock keeps doorbell registers from being written during the update.
    pub(crate) fn update_pin(&self) {
        let state = self.lock();
        let registers = &state.registers;
        let asserted = self.interrupts.mode() == InterruptMode::Pin
            && !registers.is_disabling()
            && self.intx.level(registers.interrupt_mask(), |queue| {
                self.doorbells.value(Doorbell::CompletionHead(queue))
            });
        self.interrupts.set_pin(asserted);
    }

    /// Returns `true` if the engine should stop fetching commands and ask for its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Returns `true` if no command may be fetched, and those that have been fetched must be
    /// dropped.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Returns the engine's next task. Waits for one, unless the engine has work left (`busy`), and
    /// at most until it has some (`due`).
    pub(crate) fn next(&self, enabled: bool, busy: bool, due: Option<Instant>) -> Task {
        loop {
            if let Some(task) = self.next_urgent(enabled) {
                return task;
            }
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if self.engine.take_notification() || busy || is_due {
                return Task::Queues;
            }
            self.engine.wait(due, || !self.urgent());
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
        self.notify_all();
    }

    /// Makes the engine read the registers, and the workers check requests that wait for commands
    /// to end.
    fn notify_all(&self) {
        self.urgent.store(true, Ordering::Relaxed);
        self.notify_threads();
    }

    /// Makes every thread poll for work.
    pub(crate) fn notify_threads(&self) {
        self.engine.notify();
        self.workers.iter().for_each(EventCount::notify);
    }

    fn lock(&self) -> MutexGuard<'_, NotifierState> {
        self.state.lock()
    }
}
