//! The registers as the thread that answers the guest's accesses and the engine's thread share them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use peerbar_efa_spec::registers::ReadRequest;

use crate::registers::Registers;

/// What the engine should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The device is reset.
    Reset,
    /// A register is to be read.
    Read(ReadRequest),
    /// There may be admin commands.
    Commands,
    /// The time that the engine waited for has come.
    Time,
}

/// The registers, and the notification of the engine. The engine checks for tasks with the lock held before it sleeps, and a
/// new task takes the lock before it notifies the engine, so no wake-up is lost.
pub(crate) struct SharedRegisters {
    state: Mutex<State>,
    wake: Condvar,
    /// A reset or the end of the daemon waits: checked between any two commands, without the lock.
    urgent: AtomicBool,
}

struct State {
    registers: Registers,
    is_rung: bool,
    is_stopped: bool,
}

impl SharedRegisters {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                registers: Registers::new(),
                is_rung: false,
                is_stopped: false,
            }),
            wake: Condvar::new(),
            urgent: AtomicBool::new(false),
        }
    }

    /// Reads the registers, or changes them in a way that makes no task for the engine.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Registers) -> R) -> R {
        act(&mut self.state.lock().registers)
    }

    /// Has the engine look for a reset and for commands.
    pub(crate) fn notify(&self) {
        let mut state = self.state.lock();
        state.is_rung = true;
        if state.registers.is_in_reset() {
            self.urgent.store(true, Ordering::Release);
        }
        self.wake.notify_one();
    }

    /// Has the engine answer a read request.
    pub(crate) fn request_read(&self, request: ReadRequest) {
        self.state.lock().registers.request_read(request);
        self.wake.notify_one();
    }

    /// Whether the engine should carry out no command before its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// The next task. Waits for one until `due`, unless the engine has commands left (`busy`).
    pub(crate) fn next(&self, busy: bool, due: Option<Instant>) -> Task {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if state.registers.take_reset() {
                return Task::Reset;
            }
            self.urgent.store(false, Ordering::Release);
            if let Some(request) = state.registers.take_read() {
                return Task::Read(request);
            }
            if std::mem::take(&mut state.is_rung) || busy {
                return Task::Commands;
            }
            match due {
                Some(due) if due <= Instant::now() => return Task::Time,
                Some(due) => {
                    self.wake.wait_until(&mut state, due);
                }
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// Ends the engine after the command in progress.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::registers::offset;

    use super::*;

    #[test]
    fn reset_comes_before_reads_and_reads_before_commands() {
        let shared = SharedRegisters::new();
        let request = ReadRequest::new().with_id(1);
        shared.with(|registers| registers.write(offset::DEV_CTL, 1));
        shared.notify();
        shared.request_read(request);
        assert!(shared.urgent());
        assert_eq!(shared.next(false, None), Task::Reset);
        assert_eq!(shared.next(false, None), Task::Read(request));
        assert!(!shared.urgent());
        assert_eq!(shared.next(false, None), Task::Commands);
        assert_eq!(shared.next(true, None), Task::Commands);
        let now = Instant::now();
        assert_eq!(shared.next(false, Some(now)), Task::Time);
        shared.stop();
        assert!(shared.urgent());
        assert_eq!(shared.next(true, None), Task::Stop);
    }

    #[test]
    fn doorbell_wakes_the_engine() {
        let shared = SharedRegisters::new();
        std::thread::scope(|scope| {
            let engine = scope.spawn(|| shared.next(false, None));
            shared.notify();
            assert_eq!(engine.join().unwrap(), Task::Commands);
        });
    }
}
