//! The time in which the guest's processors were busy for any purpose: programs, kernel threads,
//! interrupts.

use std::time::Duration;

use anyhow::Context;

use crate::guest_context::GuestContext;

/// The time that the host's processors have worked as those of the guest. The guest's kernel does
/// not know it: it counts idle time by ticks, and its clock continues while the host makes it wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestTime(Option<Duration>);

impl GuestTime {
    /// Reads the present time.
    pub(super) fn now(guest: &GuestContext) -> anyhow::Result<Self> {
        let time = guest.launcher.processor_time();
        Ok(Self(time.context("the processor time of the guest")?))
    }

    /// Returns the time since `before`, or `None` if the host does not know it.
    pub(super) fn since(self, before: Self) -> Option<Duration> {
        self.0?.checked_sub(before.0?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_host_does_not_know_is_none() {
        let at = |nanoseconds| GuestTime(Some(Duration::from_nanos(nanoseconds)));
        assert_eq!(at(70).since(at(30)), Some(Duration::from_nanos(40)));
        assert_eq!(at(70).since(GuestTime(None)), None);
        assert_eq!(GuestTime(None).since(at(30)), None);
    }
}
