//! An event that ends a wait, now or later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An eventfd(2), which the kernel can signal, too.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Ends the wait that is in progress, or the next one.
    pub(crate) fn signal(&self) {
        // It fails only after 2^64 signals without a wait, of which one is enough.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits for a signal since the last wait, or until the deadline. It may return early.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
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
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| event.wait(None));
            event.signal();
            waits.join().unwrap();
        });
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
    }
}
