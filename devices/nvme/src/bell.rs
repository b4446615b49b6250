//! A bell that is heard by who waits for it now or later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A bell that the kernel can ring, too (eventfd(2)).
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Wakes who waits, or who waits next.
    pub(crate) fn ring(&self) {
        // It fails only if nobody has waited for 2^64 rings, of which one is enough.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until somebody rings, or has rung since the last time, or until the moment given. It may return early.
    pub(crate) fn wait(&self, until: Option<Instant>) {
        if until.is_none_or(|until| self.rings_before(until)) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }

    fn rings_before(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        let mut bell = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut bell, left.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_heard_once() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        bell.wait(None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| bell.wait(None));
            bell.ring();
            waits.join().unwrap();
        });
    }

    #[test]
    fn a_wait_ends_at_its_moment_and_keeps_what_is_rung_later() {
        let bell = Bell::new().unwrap();
        let until = Instant::now() + Duration::from_millis(2);
        bell.wait(Some(until));
        assert!(Instant::now() >= until);
        bell.ring();
        bell.wait(Some(Instant::now() + Duration::from_secs(3600)));
        bell.wait(Some(Instant::now()));
    }
}
