//! The registers, shared by the engine's thread and the thread that answers the guest's accesses.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Far longer than a step of an engine takes, unless the step waits for peers below a switch that
/// do not answer.
pub const LONGEST_STEP: Duration = Duration::from_secs(4);

/// Registers that have requests for the engine.
pub trait EngineRequests {
    /// A request to the engine.
    type Request;

    /// Takes the most urgent request, if there is one.
    fn take_request(&mut self) -> Option<Self::Request>;
}

/// The engine's next task; `R` is a request of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<R> {
    /// The daemon ends.
    Stop,
    /// The registers have a request.
    Registers(R),
    /// A doorbell may have been written, or the engine has work left.
    Doorbells,
    /// The due time has come.
    Time,
}

/// The registers, and the notification of the engine.
///
/// The engine checks for tasks while it holds the lock, before it sleeps, and a new task takes the
/// lock before it notifies the engine, so no wake-up is lost. A write to a doorbell through a
/// mapping does not notify the engine, which reads the doorbell before it sleeps.
#[derive(Debug)]
pub struct SharedRegisters<R> {
    state: Mutex<RegistersState<R>>,
    wake: Condvar,
    /// The engine has executed a request ([`Self::complete`]).
    completed: Condvar,
    /// Checked between two steps, without the lock.
    urgent: AtomicBool,
}

#[derive(Debug)]
struct RegistersState<R> {
    registers: R,
    is_kicked: bool,
    is_stopped: bool,
}

impl<R: EngineRequests> SharedRegisters<R> {
    /// Shares these registers, without a task for the engine.
    pub fn new(registers: R) -> Self {
        Self {
            state: Mutex::new(RegistersState {
                registers,
                is_kicked: false,
                is_stopped: false,
            }),
            wake: Condvar::new(),
            completed: Condvar::new(),
            urgent: AtomicBool::new(false),
        }
    }

    /// Reads the registers, or changes them. The caller must announce a request that this makes by
    /// [`Self::notify`] or [`Self::interrupt`].
    pub fn with<T>(&self, act: impl FnOnce(&mut R) -> T) -> T {
        act(&mut self.state.lock().registers)
    }

    /// Like [`Self::with`], after the engine has executed a request for which [`Self::wait`] may
    /// wait.
    pub fn complete<T>(&self, act: impl FnOnce(&mut R) -> T) -> T {
        let result = self.with(act);
        self.completed.notify_all();
        result
    }

    /// Waits until `is_done` returns `true` for the registers.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`]: it still returns `false` after this time.
    pub fn wait(&self, limit: Duration, is_done: impl Fn(&R) -> bool) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut is_open = |state: &mut RegistersState<R>| !is_done(&state.registers);
        let waited = self
            .completed
            .wait_while_for(&mut state, &mut is_open, limit);
        match waited.timed_out() && !is_done(&state.registers) {
            true => Err(io::Error::new(
                ErrorKind::TimedOut,
                "the device's engine is stuck",
            )),
            false => Ok(()),
        }
    }

    /// Makes the engine take a request once it has no other work.
    pub fn notify(&self) {
        let _state = self.state.lock();
        self.wake.notify_one();
    }

    /// Makes the engine take a request before its next step.
    pub fn interrupt(&self) {
        let _state = self.state.lock();
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Makes the engine read the doorbells.
    pub fn kick(&self) {
        self.state.lock().is_kicked = true;
        self.wake.notify_one();
    }

    /// Returns `true` if the engine should take its next task before its next step.
    pub fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// Returns the next task. Waits for one until `due`, unless the engine has work left (`busy`).
    pub fn next(&self, busy: bool, due: Option<Instant>) -> Task<R::Request> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if let Some(request) = state.registers.take_request() {
                // There may be more. Until the last is taken, `urgent` stays set, because the
                // engine may use state that a request takes away.
                return Task::Registers(request);
            }
            self.urgent.store(false, Ordering::Release);
            if std::mem::take(&mut state.is_kicked) || busy {
                return Task::Doorbells;
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

    /// Sleeps for this time, or until there is a task.
    pub fn sleep(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.is_stopped && !state.is_kicked && !self.urgent() {
            self.wake.wait_for(&mut state, time);
        }
    }

    /// Ends the engine after the step in progress.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    impl EngineRequests for VecDeque<u8> {
        type Request = u8;

        fn take_request(&mut self) -> Option<u8> {
            self.pop_front()
        }
    }

    fn shared(requests: &[u8]) -> SharedRegisters<VecDeque<u8>> {
        SharedRegisters::new(requests.iter().copied().collect())
    }

    #[test]
    fn requests_come_before_doorbells_and_doorbells_before_time() {
        let shared = shared(&[1, 2]);
        let due = Some(Instant::now());
        shared.kick();
        shared.interrupt();
        assert_eq!(shared.next(true, due), Task::Registers(1));
        assert!(shared.urgent(), "there is another request");
        assert_eq!(shared.next(true, due), Task::Registers(2));
        assert_eq!(shared.next(false, due), Task::Doorbells);
        assert!(!shared.urgent());
        assert_eq!(shared.next(true, due), Task::Doorbells);
        assert_eq!(shared.next(false, due), Task::Time);
        shared.stop();
        assert!(shared.urgent());
        assert_eq!(shared.next(true, due), Task::Stop);
    }

    #[test]
    fn wait_ends_with_the_request_or_with_its_time() {
        let shared = shared(&[1]);
        let waited = shared.wait(Duration::from_millis(1), VecDeque::is_empty);
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            scope.spawn(|| shared.complete(|requests| requests.clear()));
            let hour = Duration::from_secs(3600);
            shared.wait(hour, VecDeque::is_empty).unwrap();
        });
        shared.wait(Duration::ZERO, VecDeque::is_empty).unwrap();
    }

    #[test]
    fn kick_or_request_wakes_the_engine() {
        let shared = shared(&[]);
        std::thread::scope(|scope| {
            let engine = scope.spawn(|| [shared.next(false, None), shared.next(false, None)]);
            shared.kick();
            shared.with(|requests| requests.push_back(7));
            shared.notify();
            let mut tasks = engine.join().unwrap();
            tasks.sort_by_key(|task| *task == Task::Doorbells);
            assert_eq!(tasks, [Task::Registers(7), Task::Doorbells]);
        });
        assert!(!shared.urgent());
    }
}
