//! Time in which the guest's processors had something to do, whoever it was for: programs, kernel threads, interrupts.

use std::time::Duration;

use anyhow::Context;

use crate::guest_context::GuestContext;

/// For how long the host's processors had worked as those of the guest, at a moment. The guest's kernel does not know: it counts its idle time
/// by ticks, and its clock runs on while the host makes it wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestTime(Option<Duration>);

impl GuestTime {
    /// That of this moment.
    pub(super) fn now(guest: &GuestContext) -> anyhow::Result<Self> {
        let time = guest.launcher.processor_time();
        Ok(Self(time.context("the processor time of the guest")?))
    }

    /// Since that moment; `None` if the host does not know.
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
