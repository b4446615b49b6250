//! The state of a function's link, up or down. Faults take it down.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// The state of a link, by a clock in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// 0 while the link is up, otherwise the time at which it comes up.
    up_at: AtomicU64,
    /// The number of times that it has gone down.
    downs: AtomicU64,
}

impl LinkState {
    /// Takes the link down until a time, or without one until [`LinkState::set_up`].
    pub(crate) fn set_down(&self, until: Option<u64>) {
        self.up_at.store(until.unwrap_or(NEVER), Ordering::Relaxed);
        self.downs.fetch_add(1, Ordering::Release);
    }

    /// Brings the link up.
    pub(crate) fn set_up(&self) {
        self.up_at.store(0, Ordering::Relaxed);
    }

    /// Returns `true` if the link is up; `now` reads the clock.
    #[inline]
    pub(crate) fn is_up(&self, now: impl FnOnce() -> u64) -> bool {
        match self.up_at.load(Ordering::Relaxed) {
            0 => true,
            up_at => up_at <= now(),
        }
    }

    /// Returns the number of times that the link has gone down.
    pub(crate) fn downs(&self) -> u64 {
        self.downs.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_comes_up_at_its_time_or_when_it_is_set() {
        let link = LinkState::default();
        assert!(link.is_up(|| 0));
        link.set_down(Some(100));
        assert!(!link.is_up(|| 99) && link.is_up(|| 100));
        link.set_down(None);
        assert!(!link.is_up(|| NEVER - 1));
        link.set_up();
        assert!(link.is_up(|| 0));
        assert_eq!(link.downs(), 2);
    }
}
