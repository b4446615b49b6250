//! What the thread that answers the guest's accesses and the engine's thread say to each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::registers::{Registers, Request};

/// What the engine should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The daemon ends.
    Stop,
    /// The registers ask for something.
    Registers(Request),
    /// A doorbell may have been rung, or the engine said that it has work left.
    Doorbells,
}

/// The registers, and the engine's alarm clock.
///
/// The engine looks at its inbox with the lock held before it sleeps, and whoever adds to the inbox takes the lock
/// before it wakes the engine, so no wake-up is lost. Doorbells that are rung by a mapping are the exception; see
/// [`Doorbells`](crate::doorbells::Doorbells).
pub(crate) struct Mailbox {
    state: Mutex<State>,
    wake: Condvar,
    /// Something other than a doorbell waits: looked at between any two steps of a command, without the lock.
    urgent: AtomicBool,
}

struct State {
    registers: Registers,
    kicked: bool,
    stop: bool,
}

impl Mailbox {
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

    /// Looks at the registers, or changes them in a way that the engine needs no telling of.
    pub(crate) fn registers<R>(&self, act: impl FnOnce(&mut Registers) -> R) -> R {
        act(&mut self.lock().registers)
    }

    /// Has the engine look at the registers before it goes on.
    pub(crate) fn alert(&self) {
        let _state = self.lock();
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Has the engine look at the doorbells.
    pub(crate) fn kick(&self) {
        self.lock().kicked = true;
        self.wake.notify_one();
    }

    /// Whether the engine should go on with a command of the channel.
    pub(crate) fn wants(&self, channel: u8, epoch: u64) -> bool {
        if !self.urgent() {
            return true;
        }
        let state = self.lock();
        !state.stop && !state.registers.is_over(channel, epoch)
    }

    /// Whether the engine should take no more commands before it has asked for its next task.
    pub(crate) fn urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// The next task; waits for one, unless the engine has work left (`busy`).
    pub(crate) fn next(&self, busy: bool) -> Task {
        let mut state = self.lock();
        loop {
            if state.stop {
                return Task::Stop;
            }
            if let Some(request) = state.registers.take_request() {
                // There may be more, and until the last is taken the engine has rings of channels that are off.
                return Task::Registers(request);
            }
            self.urgent.store(false, Ordering::Release);
            if std::mem::take(&mut state.kicked) || busy {
                return Task::Doorbells;
            }
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the engine after the step in progress.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stop = true;
        self.urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::doorbells::Doorbells;

    fn mailbox() -> Mailbox {
        let doorbells = Arc::new(Doorbells::new(0x1_0000).unwrap());
        Mailbox::new(Registers::new((0, 0), None, doorbells))
    }

    #[test]
    fn a_kick_wakes_the_engine_once() {
        let mailbox = mailbox();
        std::thread::scope(|scope| {
            let engine = scope.spawn(|| mailbox.next(false));
            mailbox.kick();
            assert_eq!(engine.join().unwrap(), Task::Doorbells);
        });
        mailbox.stop();
        assert_eq!(mailbox.next(false), Task::Stop, "the kick has been taken");
    }

    #[test]
    fn the_registers_come_before_the_doorbells() {
        let mailbox = mailbox();
        mailbox.kick();
        mailbox.registers(Registers::reset);
        mailbox.alert();
        assert!(mailbox.urgent());
        assert_eq!(mailbox.next(true), Task::Registers(Request::Reset));
        mailbox.registers(Registers::was_reset);
        assert_eq!(mailbox.next(false), Task::Doorbells);
        assert!(!mailbox.urgent());
    }

    #[test]
    fn nothing_is_wanted_of_two_channels_that_stop_before_both_stops_are_taken() {
        let mailbox = mailbox();
        let enable = |channel: u64, on: u8| {
            let control = 0x1010 + 0x100 * channel;
            mailbox.registers(|registers| registers.write(control, &[on, 0, 0, 0]));
            mailbox.alert();
        };
        enable(0, 1);
        enable(1, 1);
        let (Task::Registers(Request::Start(0, _)), Task::Registers(Request::Start(1, setup))) =
            (mailbox.next(false), mailbox.next(false))
        else {
            panic!("no starts")
        };
        enable(0, 0);
        enable(1, 0);
        assert_eq!(mailbox.next(true), Task::Registers(Request::Release(0)));
        assert!(mailbox.urgent() && !mailbox.wants(1, setup.epoch));
    }

    #[test]
    fn a_command_is_wanted_until_its_channel_is_stopped_or_the_daemon_ends() {
        let mailbox = mailbox();
        let enable = |on: u8| {
            mailbox.registers(|registers| registers.write(0x1010, &[on, 0, 0, 0]));
            mailbox.alert();
        };
        enable(1);
        let Task::Registers(Request::Start(0, setup)) = mailbox.next(false) else {
            panic!("no start")
        };
        assert!(mailbox.wants(0, setup.epoch));
        mailbox.alert();
        assert!(mailbox.wants(0, setup.epoch), "somebody else's alert");
        enable(0);
        assert!(!mailbox.wants(0, setup.epoch));
        assert!(!mailbox.wants(16, 0), "no such channel");
    }
}
