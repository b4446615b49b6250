//! What the switch knows of each endpoint.

use std::time::Instant;

use super::updates::Updates;
use crate::limits::{ACKNOWLEDGE_TIME_OUT, ANNOUNCEMENT_TIME_OUT, CLOSING_TIME_OUT};
use crate::message::LinkTiming;
use crate::window::{BarWindow, Descriptor};

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// `None` until its Hello.
    pub(super) name: Option<String>,
    /// The name of its Hello, while another endpoint has that.
    pub(super) awaited: Option<Awaited>,
    pub(super) link: Option<LinkTiming>,
    pub(super) windows: Vec<BarWindow>,
    pub(super) leases: Descriptor,
    pub(super) updates: Updates,
    pub(super) announcing: Option<Announcing>,
}

/// A name that may become free.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    pub(super) name: String,
    pub(super) deadline: Instant,
}

/// An announcement that not all others have acknowledged yet.
#[derive(Clone, Debug)]
pub(super) struct Announcing {
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    pub(super) begun: Instant,
    /// It opens no window, so an endpoint that has not learned of it accesses none that it should not.
    pub(super) only_closes: bool,
    /// Its endpoint has the answer. Those that have not acknowledged it are still to do so.
    pub(super) is_answered: bool,
}

impl Announcing {
    /// When its endpoint gets the answer, whoever has not acknowledged it.
    pub(super) fn answer_at(&self) -> Option<Instant> {
        let waits = self.only_closes && !self.is_answered;
        waits.then(|| self.begun + CLOSING_TIME_OUT)
    }
}

impl Port {
    /// Whether its Hello is still to come.
    pub(super) fn is_silent(&self) -> bool {
        self.name.is_none() && self.awaited.is_none()
    }

    /// Until when it is to have acknowledged what this announcement of a peer waits for; none if it has.
    pub(super) fn deadline(&self, announcing: &Announcing) -> Option<Instant> {
        let unacknowledged = self.updates.oldest()?;
        let since = self.updates.sent_at()?.max(announcing.begun);
        let last = announcing.begun + ANNOUNCEMENT_TIME_OUT;
        (unacknowledged <= announcing.epoch).then(|| last.min(since + ACKNOWLEDGE_TIME_OUT))
    }
}

/// An endpoint that vanished while it had windows.
#[derive(Clone, Debug)]
pub(super) struct Vanished {
    pub(super) name: String,
    pub(super) windows: Vec<BarWindow>,
}
