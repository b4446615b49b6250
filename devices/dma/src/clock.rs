//! The time that transfers take.

use std::time::Duration;

/// A clock that runs alike for all processes of the machine.
pub(crate) trait Clock: Send + Sync {
    /// Nanoseconds since some moment in the past.
    fn now(&self) -> u64;
    /// Waits for this many nanoseconds, or a bit longer.
    fn sleep(&self, nanoseconds: u64);
}

/// The machine's own, as flight records have it.
#[derive(Debug)]
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> u64 {
        peerbar_flight::monotonic_ns()
    }

    fn sleep(&self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }
}

/// The nanoseconds of a duration, or as many as there can be.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
