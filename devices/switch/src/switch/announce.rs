//! Announcements of windows, and their acknowledgements.

use super::output::Reason;
use super::port::Announcing;
use super::updates::{Update, Updates};
use super::{Output, Switch};
use crate::limits::CLOSING_TIME_OUT;
use crate::message::{Message, PortId};
use crate::window::{BarBacking, BarWindow, Descriptor};

impl Switch {
    pub(super) fn announce(
        &mut self,
        from: PortId,
        sequence: u64,
        (windows, leases): (Vec<BarWindow>, Descriptor),
    ) -> Result<(), Reason> {
        self.check_announcement(from, &windows)?;
        let windows = self.in_holes(from, windows);
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        let is_old = |window: &BarWindow| port.announced.iter().any(|old| window.is_known_by(old));
        let is_opening = !windows.iter().all(is_old);
        port.announced = windows;
        port.leases = leases;
        // It makes changes only as fast as they are sent to the others.
        let is_ahead = self.is_waiting(from);
        let closes = self.pass_on(from);
        self.announced(from, is_opening);
        if !closes && !is_ahead {
            // An endpoint that does not know a window yet is sent the window before its next
            // request.
            self.send(from, Message::Announced { sequence });
            return Ok(());
        }
        let deadline = self.now + CLOSING_TIME_OUT;
        if let Some(port) = self.ports.get_mut(&from) {
            port.announcing = Some(Announcing { sequence, deadline });
        }
        self.settle();
        Ok(())
    }

    /// Passes on those of an endpoint's windows that its port forwards, as far as the switch knows,
    /// and closes all others. Returns `true` if it closes any. A window that has not moved keeps
    /// its claim.
    pub(super) fn pass_on(&mut self, from: PortId) -> bool {
        let Some(port) = self.ports.get_mut(&from) else {
            return false;
        };
        let mut windows = port.forwarded(self.forwarding.as_ref());
        for window in &mut windows {
            let unmoved = port.windows.iter().find(|old| old.has_range_of(window));
            window.claim = unmoved.map_or_else(
                || {
                    self.last_claim += 1;
                    self.last_claim
                },
                |old| old.claim,
            );
        }
        let former = std::mem::replace(&mut port.windows, windows.clone());
        let leases = port.leases.clone();
        let is_in =
            |these: &[BarWindow], one: &BarWindow| these.iter().any(|other| one.is_known_by(other));
        let closes = !former.iter().all(|old| is_in(&windows, old));
        let opens = !windows.iter().all(|window| is_in(&former, window));
        if opens || closes {
            self.note_overlaps(from, &windows);
            self.publish(from, &windows, &leases);
        }
        closes
    }

    /// Checks that an endpoint may announce these windows now.
    fn check_announcement(&self, from: PortId, windows: &[BarWindow]) -> Result<(), Reason> {
        let port = self.ports.get(&from).ok_or(Reason::Silent)?;
        if port.announcing.is_some() {
            return Err(Reason::Violation(
                "it announces a window before the last one is Announced",
            ));
        }
        let is_gone = |window: &BarWindow| matches!(window.backing, BarBacking::Gone);
        match windows.iter().any(is_gone) {
            true => Err(Reason::Violation("it announces a window without an owner")),
            false => Ok(()),
        }
    }

    /// Returns those of an endpoint's windows that lie in PCI holes, and logs the others.
    fn in_holes(&self, from: PortId, mut windows: Vec<BarWindow>) -> Vec<BarWindow> {
        windows.retain(|window| {
            let inside = self.config.holes.iter().any(|hole| hole.encloses(&window.range));
            if !inside {
                log::warn!(
                    "port {from}, BAR{} at {}+{:#x} is outside of the machine's PCI holes, so no peer reaches it; `--pci-hole` says where they are",
                    window.bar,
                    window.range.first(),
                    window.range.size(),
                );
            }
            inside
        });
        windows
    }

    /// Logs each of an endpoint's windows that overlaps a window with an earlier claim of another
    /// endpoint.
    fn note_overlaps(&self, from: PortId, windows: &[BarWindow]) {
        for window in windows {
            let others = self.ports.iter().filter(|(id, _)| **id != from);
            let mut claimed =
                others.flat_map(|(id, port)| port.windows.iter().map(move |w| (id, w)));
            let earlier = |(_, other): &(_, &BarWindow)| {
                other.claim < window.claim && other.range.overlaps(&window.range)
            };
            let Some((owner, other)) = claimed.find(earlier) else {
                continue;
            };
            log::warn!(
                "port {from}, BAR{} at {}+{:#x} lies over BAR{} of port {owner} at {}+{:#x}, which came first and answers",
                window.bar,
                window.range.first(),
                window.range.size(),
                other.bar,
                other.range.first(),
                other.range.size(),
            );
        }
    }

    pub(super) fn acknowledge(&mut self, from: PortId, ticket: u64) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from);
        if !port.is_some_and(|port| port.updates.acknowledge(ticket)) {
            return Err(Reason::Violation(
                "it acknowledges changes that it has not read",
            ));
        }
        self.update(from);
        self.settle();
        Ok(())
    }

    /// Sends Announced for each announcement that all others have acknowledged, or whose time is
    /// over.
    pub(super) fn settle(&mut self) {
        let ports = self.ports.iter();
        let announcing = ports.filter_map(|(id, port)| Some((*id, port.announcing?)));
        let done =
            announcing.filter(|(id, last)| last.deadline <= self.now || !self.is_waiting(*id));
        for (id, Announcing { sequence, .. }) in done.collect::<Vec<_>>() {
            if let Some(port) = self.ports.get_mut(&id) {
                port.announcing = None;
            }
            self.send(id, Message::Announced { sequence });
        }
    }

    /// Returns `true` if an endpoint that is not late has yet to acknowledge a change of this one.
    /// An endpoint never waits for itself.
    fn is_waiting(&self, announcer: PortId) -> bool {
        let mut ports = self.ports.values();
        ports.any(|port| port.is_waited_for(announcer, self.now))
    }

    /// Counts a change of the windows of `peer`, and sends it to all other endpoints.
    pub(super) fn publish(&mut self, peer: PortId, windows: &[BarWindow], leases: &Descriptor) {
        self.last_change += 1;
        // This precedes any endpoint's reaction to the change.
        self.outputs.push(Output::Count(self.last_change));
        for other in self.ports_that(|port| port.name.is_some()) {
            if other == peer {
                self.inform(other);
                continue;
            }
            let update = Update {
                peer,
                windows: windows.to_vec(),
                leases: leases.clone(),
                since: Some(self.last_change),
            };
            self.change(other, |updates| updates.push(update));
        }
    }

    /// Makes all other endpoints forget a peer that is permanently gone.
    pub(super) fn forget(&mut self, peer: PortId) {
        for other in self.ports_that(|port| port.name.is_some()) {
            self.change(other, |updates| updates.forget(peer));
        }
    }

    pub(super) fn change(&mut self, of: PortId, change: impl FnOnce(&mut Updates)) {
        if let Some(port) = self.ports.get_mut(&of) {
            change(&mut port.updates);
        }
        self.update(of);
    }

    /// Sends an endpoint the next change of a peer, unless it has yet to acknowledge one. The
    /// timing of a peer's link comes before its first windows.
    pub(super) fn update(&mut self, to: PortId) {
        let ticket = (self.ticket)(self.last_update + 1);
        let (port, now) = (self.ports.get_mut(&to), self.now);
        let Some((update, is_first)) = port.and_then(|port| port.updates.next(ticket, now)) else {
            self.inform(to);
            return;
        };
        self.last_update += 1;
        let Update {
            peer,
            mut windows,
            mut leases,
            ..
        } = update;
        if !self.passes_requests_of(to) {
            // An endpoint in this mode has no use for memory, unless it ignores its mode.
            let without = windows.into_iter().map(BarWindow::without_memory);
            (windows, leases) = (without.collect(), Descriptor::default());
        }
        let timing = self.ports.get(&peer).and_then(|port| port.link.clone());
        if let Some(timing) = timing.filter(|_| is_first) {
            self.send(to, Message::Link { peer, timing });
        }
        let known = self.known(to);
        if let Some(port) = self.ports.get_mut(&to) {
            port.known = Some(known);
        }
        let message = Message::Peer {
            ticket,
            peer,
            windows,
            leases,
            known,
        };
        self.send(to, message);
    }

    /// Returns the count up to which all changes have been sent to an endpoint.
    fn known(&self, to: PortId) -> u64 {
        let unsent = self.ports.get(&to);
        let unsent = unsent.and_then(|port| port.updates.first_unsent());
        unsent.map_or(self.last_change, |unsent| unsent.saturating_sub(1))
    }

    /// Sends an endpoint that count, if it has changed and no change is sent with it.
    fn inform(&mut self, to: PortId) {
        let count = self.known(to);
        let Some(port) = self.ports.get_mut(&to) else {
            return;
        };
        if port.updates.sent.is_none() && port.known < Some(count) {
            port.known = Some(count);
            self.send(to, Message::Known { count });
        }
    }
}
