//! The clock of transfers.

use std::time::Duration;

/// A clock that is the same for all processes of the machine.
pub(crate) trait Clock: Send + Sync {
    /// Returns the nanoseconds since some moment in the past.
    fn now(&self) -> u64;
    /// Waits for at least this many nanoseconds.
    fn sleep(&self, nanoseconds: u64);
}

/// The machine's monotonic clock, which flight records also use.
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

/// Returns a duration in nanoseconds, saturated.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
