//! The registers as the thread that answers the guest's accesses and the engine's thread share them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::registers::{Registers, Request};

/// What the engine should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The registers have a request.
    Registers(Request),
    /// A doorbell may have been written, or the engine has commands left.
    Doorbells,
}

/// The registers, and the notification of the engine.
///
/// The engine checks for tasks with the lock held before it sleeps, and a new task takes the lock before it notifies the
/// engine, so no wake-up is lost. Doorbells that are written through a mapping are the exception; see
/// [`Doorbells`](crate::doorbells::Doorbells).
pub(crate) struct SharedRegisters {
    state: Mutex<State>,
    wake: Condvar,
    /// A task other than a doorbell waits: checked between any two steps, without the lock.
    urgent: AtomicBool,
}

struct State {
    registers: Registers,
    kicked: bool,
    stop: bool,
}

impl SharedRegisters {
    pub(crate) fn new(registers: Registers) -> Self {
        Self {
            state: Mutex::new(State {
                registers,
                kicked: false,
                stop: false,
            }),
            wake: Condvar::new(),
            urgent: AtomicBool::new(false),
        }
    }

    /// Reads the registers, or changes them in a way that makes no task for the engine.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Registers) -> R) -> R {
        act(&mut self.state.lock().registers)
    }

    /// Has the engine take its requests from the registers before the next step.
    pub(crate) fn notify(&self) {
        let _state = self.state.lock();
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Has the engine read the doorbells.
    pub(crate) fn kick(&self) {
        self.state.lock().kicked = true;
        self.wake.notify_one();
    }

    /// Whether the engine should do no step before its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// The next task; waits for one, unless the engine has work left (`busy`).
    pub(crate) fn next(&self, busy: bool) -> Task {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return Task::Stop;
            }
            if let Some(request) = state.registers.take_request() {
                // There may be more, and until the last is taken the engine holds rings of channels that are off.
                return Task::Registers(request);
            }
            self.urgent.store(false, Ordering::Release);
            if std::mem::take(&mut state.kicked) || busy {
                return Task::Doorbells;
            }
            self.wake.wait(&mut state);
        }
    }

    /// Sleeps for this time, or until there is a task.
    pub(crate) fn sleep(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.stop && !state.kicked && !self.urgent() {
            self.wake.wait_for(&mut state, time);
        }
    }

    /// Ends the engine after the step in progress.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::doorbells::Doorbells;

    fn shared() -> SharedRegisters {
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        SharedRegisters::new(Registers::new((0, 0), None, doorbells))
    }

    #[test]
    fn a_kick_wakes_the_engine_once() {
        let shared = shared();
        std::thread::scope(|scope| {
            let engine = scope.spawn(|| shared.next(false));
            shared.kick();
            assert_eq!(engine.join().unwrap(), Task::Doorbells);
        });
        shared.stop();
        assert_eq!(shared.next(false), Task::Stop, "the kick has been taken");
    }

    #[test]
    fn the_registers_come_before_the_doorbells() {
        let shared = shared();
        shared.kick();
        shared.with(Registers::reset);
        shared.notify();
        assert!(shared.urgent());
        assert_eq!(shared.next(true), Task::Registers(Request::Reset));
        shared.with(Registers::was_reset);
        assert_eq!(shared.next(false), Task::Doorbells);
        assert!(!shared.urgent());
    }

    #[test]
    fn engine_does_no_step_before_its_last_request() {
        let shared = shared();
        let enable = |channel: u64, on: u8| {
            let control = 0x1010 + 0x100 * channel;
            shared.with(|registers| registers.write(control, &[on, 0, 0, 0]));
            shared.notify();
        };
        enable(0, 1);
        enable(1, 1);
        for channel in [0, 1] {
            let task = shared.next(false);
            assert!(
                matches!(task, Task::Registers(Request::Start(number, _)) if number == channel)
            );
        }
        assert_eq!(shared.next(true), Task::Doorbells);
        assert!(!shared.urgent());
        enable(0, 0);
        enable(1, 0);
        for channel in [0, 1] {
            let release = Task::Registers(Request::Release(channel));
            assert_eq!(shared.next(true), release);
            assert!(shared.urgent(), "the engine may still hold a ring");
            shared.with(|registers| registers.released(channel));
        }
        assert_eq!(shared.next(true), Task::Doorbells);
        assert!(!shared.urgent());
    }
}
