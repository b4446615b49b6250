//! The eventfds of the process itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::eventfd::event;

/// An eventfd(2) of the process, with which its threads and the kernel end a wait, now or later. No
/// other process may have it: an eventfd from a client is an [`Event`](crate::eventfd::Event).
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes an eventfd without a signal.
    ///
    /// # Errors
    /// EMFILE or ENFILE: the process or the machine may have no more descriptors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Makes it readable: ends the wait that is in progress, or the next one.
    pub fn signal(&self) {
        // It waits only after 2^64 signals if none of them was taken.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes the signals since the last call without waiting. Returns `true` if there were any.
    pub fn take(&self) -> bool {
        event::take(self.0.as_fd())
    }

    /// Waits for a signal since the last call, or until the deadline, and takes it. It may return
    /// early.
    pub fn wait(&self, deadline: Option<Instant>) {
        if deadline.is_none_or(|deadline| self.is_signalled_before(deadline)) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }

    fn is_signalled_before(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        let mut event = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut event, left.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn signals_before_a_wait_end_it_once() {
        let event = EventFd::new().unwrap();
        event.signal();
        event.signal();
        event.wait(None);
        assert!(!event.take());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| event.wait(None));
            event.signal();
            waits.join().unwrap();
        });
        assert!(!event.take());
    }

    #[test]
    fn signals_are_taken_together_without_waiting() {
        let event = EventFd::new().unwrap();
        assert!(!event.take());
        event.signal();
        event.signal();
        assert!(event.take() && !event.take());
    }

    #[test]
    fn wait_past_its_deadline_keeps_a_later_signal() {
        let event = EventFd::new().unwrap();
        let deadline = Instant::now() + Duration::from_millis(2);
        event.wait(Some(deadline));
        assert!(Instant::now() >= deadline);
        event.signal();
        event.wait(Some(Instant::now() + Duration::from_secs(3600)));
        event.wait(Some(Instant::now()));
        assert!(!event.take());
    }
}
