//! The switch's state of each endpoint.

use std::time::Instant;

use super::forwarding::Forwarding;
use super::updates::Updates;
use crate::limits::CLOSING_TIME_OUT;
use crate::message::{LinkTiming, PortId};
use crate::window::{BarWindow, Descriptor};

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// The name, or `None` until its Hello.
    pub(super) name: Option<String>,
    /// The name in its Hello, while another endpoint has that name.
    pub(super) awaited: Option<Awaited>,
    pub(super) link: Option<LinkTiming>,
    /// The windows that it has announced and that lie in PCI holes.
    pub(super) announced: Vec<BarWindow>,
    /// The announced windows that peers may use, because its port forwards them.
    pub(super) windows: Vec<BarWindow>,
    pub(super) leases: Descriptor,
    /// The announced windows that peers may not use.
    pub(super) withheld: Vec<Withheld>,
    pub(super) updates: Updates,
    /// The count of changes that the endpoint knows, up to which it has been sent all of them.
    pub(super) known: Option<u64>,
    pub(super) announcing: Option<Announcing>,
}

/// A window that its endpoint's port does not forward.
#[derive(Clone, Debug)]
pub(super) struct Withheld {
    pub(super) window: BarWindow,
    pub(super) since: Instant,
    pub(super) is_logged: bool,
}

/// A name that may become free.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    pub(super) name: String,
    pub(super) deadline: Instant,
}

/// An announcement that waits for the acknowledgements of others, because it closes a window or
/// because they have not acknowledged the previous one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcing {
    pub(super) sequence: u64,
    /// The time of the answer, even if endpoints have not acknowledged the announcement.
    pub(super) deadline: Instant,
}

impl Port {
    /// Returns `true` if its Hello is still to come.
    pub(super) fn is_silent(&self) -> bool {
        self.name.is_none() && self.awaited.is_none()
    }

    /// Returns those of its windows that the bridge above it forwards, or all if the bridges are
    /// not known.
    pub(super) fn forwarded(&self, forwarding: Option<&Forwarding>) -> Vec<BarWindow> {
        let name = self.name.as_deref().unwrap_or_default();
        let is_held =
            |window: &&BarWindow| forwarding.is_none_or(|known| known.holds(name, window));
        self.announced.iter().filter(is_held).cloned().collect()
    }

    /// Records its withheld windows, and the time since which they are withheld.
    pub(super) fn note_withheld(&mut self, now: Instant) {
        let former = std::mem::take(&mut self.withheld);
        let passed_on =
            |window: &BarWindow| self.windows.iter().any(|one| one.has_range_of(window));
        let withheld = self.announced.iter().filter(|window| !passed_on(window));
        let withheld = withheld.map(|window| {
            let known = former.iter().find(|one| one.window.has_range_of(window));
            known.cloned().unwrap_or_else(|| Withheld {
                window: window.clone(),
                since: now,
                is_logged: false,
            })
        });
        self.withheld = withheld.collect();
    }

    /// Returns `true` if an announcement of `peer` waits for this endpoint: it has not acknowledged
    /// the announcement, and is not already late.
    pub(super) fn is_waited_for(&self, peer: PortId, now: Instant) -> bool {
        let sent = self.updates.sent_at();
        sent.is_some_and(|at| now < at + CLOSING_TIME_OUT) && self.updates.has_unacknowledged(peer)
    }
}

/// An endpoint that vanished while it had windows.
#[derive(Clone, Debug)]
pub(super) struct Vanished {
    pub(super) name: String,
    pub(super) windows: Vec<BarWindow>,
}
