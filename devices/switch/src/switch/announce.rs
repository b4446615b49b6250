//! Announcements of windows, and their acknowledgements.

use super::Switch;
use super::output::Reason;
use super::port::Announcing;
use super::updates::{Update, Updates};
use crate::message::{Message, PortId};
use crate::window::{BarBacking, BarWindow, Descriptor};

/// How many misplaced windows are logged as warnings; a guest can cause any number of them.
const WARNINGS: u32 = 16;

impl Switch {
    pub(super) fn announce(
        &mut self,
        from: PortId,
        sequence: u64,
        (mut windows, leases): (Vec<BarWindow>, Descriptor),
    ) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if port
            .announcing
            .as_ref()
            .is_some_and(|last| !last.is_answered)
        {
            return Err(Reason::Violation(
                "it announces before the last is Announced",
            ));
        }
        for window in &mut windows {
            if matches!(window.backing, BarBacking::Gone) {
                return Err(Reason::Violation("it announces a window without an owner"));
            }
            let unmoved = port.windows.iter().find(|old| old.has_range_of(window));
            window.claim = unmoved.map_or_else(
                || {
                    self.last_claim += 1;
                    self.last_claim
                },
                |old| old.claim,
            );
        }
        let windows = self.in_holes(from, windows);
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        let former = std::mem::replace(&mut port.windows, windows.clone());
        let is_known = |window: &BarWindow| former.iter().any(|old| window.is_known_by(old));
        let only_closes = windows.iter().all(is_known);
        port.leases.clone_from(&leases);
        self.note_overlaps(from, &windows);
        let epoch = self.publish(from, &windows, &leases);
        if let Some(port) = self.ports.get_mut(&from) {
            port.announcing = Some(Announcing {
                sequence,
                epoch,
                begun: self.now,
                only_closes,
                is_answered: false,
            });
        }
        self.settle();
        Ok(())
    }

    /// Those of an endpoint's windows that lie in PCI holes; logs the others.
    fn in_holes(&mut self, from: PortId, mut windows: Vec<BarWindow>) -> Vec<BarWindow> {
        let (holes, warnings) = (&self.config.holes, &mut self.warnings);
        windows.retain(|window| {
            let inside = holes.iter().any(|hole| hole.holds(window));
            if !inside {
                log::log!(
                    level(warnings),
                    "port {from}, BAR{} at {:#x}+{:#x} is outside of the machine's PCI holes, so no peer reaches it; `--pci-hole` says where they are",
                    window.bar,
                    window.address,
                    window.size,
                );
            }
            inside
        });
        windows
    }

    /// Logs which of an endpoint's windows overlap windows with earlier claims of others.
    fn note_overlaps(&mut self, from: PortId, windows: &[BarWindow]) {
        for window in windows {
            let others = self.ports.iter().filter(|(id, _)| **id != from);
            let mut claimed =
                others.flat_map(|(id, port)| port.windows.iter().map(move |w| (id, w)));
            let earlier =
                |(_, other): &(_, &BarWindow)| other.claim < window.claim && other.overlaps(window);
            let Some((owner, other)) = claimed.find(earlier) else {
                continue;
            };
            log::log!(
                level(&mut self.warnings),
                "port {from}, BAR{} at {:#x}+{:#x} lies over BAR{} of port {owner} at {:#x}+{:#x}, which came first and answers",
                window.bar,
                window.address,
                window.size,
                other.bar,
                other.address,
                other.size,
            );
        }
    }

    pub(super) fn acknowledge(&mut self, from: PortId, ticket: u64) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from);
        if !port.is_some_and(|port| port.updates.acknowledge(ticket)) {
            return Err(Reason::Violation("it acknowledges what it has not read"));
        }
        self.update(from);
        self.settle();
        Ok(())
    }

    /// Sends Announced for announcements that only close windows and have waited long enough.
    pub(super) fn answer_closings(&mut self) {
        let now = self.now;
        let ports = self.ports.iter_mut();
        let announcing = ports.filter_map(|(id, port)| Some((*id, port.announcing.as_mut()?)));
        let due = announcing.filter(|(_, last)| last.answer_at().is_some_and(|at| at <= now));
        let answers = due.map(|(id, last)| {
            last.is_answered = true;
            (id, last.sequence)
        });
        for (id, sequence) in answers.collect::<Vec<_>>() {
            self.send(id, Message::Announced { sequence });
        }
    }

    /// Sends Announced for each announcement that all others have acknowledged, unless that has been sent.
    pub(super) fn settle(&mut self) {
        let ports = self.ports.iter();
        let unacknowledged: Vec<(PortId, u64)> = ports
            .filter_map(|(id, port)| Some((*id, port.updates.oldest()?)))
            .collect();
        let settled = |id: &PortId, announcing: &Announcing| {
            let mut others = unacknowledged.iter().filter(|(other, _)| other != id);
            others.all(|(_, oldest)| *oldest > announcing.epoch)
        };
        let ports = self.ports.iter_mut();
        let done = ports.filter_map(|(id, port)| {
            let last = port.announcing.take_if(|last| settled(id, last))?;
            (!last.is_answered).then_some((*id, last.sequence))
        });
        for (id, sequence) in done.collect::<Vec<_>>() {
            self.send(id, Message::Announced { sequence });
        }
    }

    /// Sends the windows of `peer` to all other endpoints; the number of the change.
    pub(super) fn publish(
        &mut self,
        peer: PortId,
        windows: &[BarWindow],
        leases: &Descriptor,
    ) -> u64 {
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        for other in self.ports_that(|port| port.name.is_some()) {
            if other != peer {
                let update = Update {
                    peer,
                    windows: windows.to_vec(),
                    leases: leases.clone(),
                    epoch: Some(epoch),
                };
                self.change(other, |updates| updates.push(update));
            }
        }
        epoch
    }

    /// Has all other endpoints forget a peer that is gone for good.
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

    /// Sends an endpoint the next change of a peer, unless it has one to acknowledge. The timing of a peer's link comes before
    /// its first windows.
    pub(super) fn update(&mut self, to: PortId) {
        let ticket = (self.ticket)(self.last_update + 1);
        let (port, now) = (self.ports.get_mut(&to), self.now);
        let Some((update, is_first)) = port.and_then(|port| port.updates.next(ticket, now)) else {
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
            // It has no use for memory, unless it does not observe its mode.
            let without = windows.into_iter().map(BarWindow::without_memory);
            (windows, leases) = (without.collect(), Descriptor::default());
        }
        let timing = self.ports.get(&peer).and_then(|port| port.link.clone());
        if let Some(timing) = timing.filter(|_| is_first) {
            self.send(to, Message::Link { peer, timing });
        }
        let message = Message::Peer {
            ticket,
            peer,
            windows,
            leases,
        };
        self.send(to, message);
    }
}

/// The level at which the next misplaced window is logged.
fn level(warnings: &mut u32) -> log::Level {
    *warnings = warnings.saturating_add(1);
    if *warnings <= WARNINGS {
        log::Level::Warn
    } else {
        log::Level::Debug
    }
}
