//! The time that transfers take.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A clock that runs alike for all processes of the machine.
pub(crate) trait Clock: Send + Sync {
    /// Nanoseconds since some moment in the past.
    fn now(&self) -> u64;
    /// Waits for this many nanoseconds, or a bit longer.
    fn sleep(&self, nanoseconds: u64);
}

/// The machine's own (clock_gettime(2), CLOCK_MONOTONIC).
#[derive(Debug)]
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> u64 {
        let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }
}
