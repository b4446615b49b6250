//! Endpoints that attach and leave.

use std::time::Instant;

use super::output::Reason;
use super::port::{Awaited, Vanished};
use super::updates::Update;
use super::{Output, Switch};
use crate::limits::{MAX_PORTS, NAME_TIME_OUT, PROTOCOL};
use crate::message::{LinkTiming, Message, PortId, Refusal, RequestError};
use crate::window::{BarWindow, Descriptor};

impl Switch {
    pub(super) fn hello(
        &mut self,
        port: PortId,
        protocol: u32,
        name: String,
    ) -> Result<(), Reason> {
        if protocol != PROTOCOL {
            return Err(self.refuse(port, Refusal::Protocol));
        }
        if self.ports.values().any(|p| p.name.as_ref() == Some(&name)) {
            let deadline = self.now + NAME_TIME_OUT;
            if let Some(newcomer) = self.ports.get_mut(&port) {
                newcomer.awaited = Some(Awaited { name, deadline });
            }
            return Ok(());
        }
        self.welcome(port, name)
    }

    fn refuse(&mut self, port: PortId, refusal: Refusal) -> Reason {
        self.send(port, Message::Refused(refusal));
        Reason::Refused(refusal)
    }

    fn welcome(&mut self, port: PortId, name: String) -> Result<(), Reason> {
        if self.ports_that(|port| port.name.is_some()).len() >= MAX_PORTS {
            return Err(self.refuse(port, Refusal::Full));
        }
        self.forget_vanished(&name);
        self.forget_bridges();
        let mode = self.config.modes.get(&name).copied().unwrap_or_default();
        let changes = self.changes.clone();
        self.send(
            port,
            Message::Welcome {
                port,
                mode,
                changes,
            },
        );
        self.introduce_peers_to(port);
        if let Some(newcomer) = self.ports.get_mut(&port) {
            newcomer.name = Some(name);
        }
        self.update(port);
        Ok(())
    }

    /// Refuses those that have waited too long for their names.
    pub(super) fn refuse_namesakes(&mut self) {
        let now = self.now;
        let waited = |awaited: &Awaited| awaited.deadline <= now;
        for port in self.ports_that(|port| port.awaited.as_ref().is_some_and(waited)) {
            let reason = self.refuse(port, Refusal::NameTaken);
            self.cut_off(port, reason);
        }
    }

    /// Handles the end of a connection. The windows of an endpoint stay claimed, without an owner.
    pub(crate) fn leave(&mut self, leaving: PortId, now: Instant) {
        self.now = now;
        let Some(port) = self.ports.remove(&leaving) else {
            return;
        };
        let name = port.name.clone();
        let (asked, to_be_answered) = self.requests.leave(leaving);
        let withdrawn = asked.into_iter();
        let withdrawn = withdrawn.map(|(id, completer)| Output::Withdraw(completer, id));
        self.outputs.extend(withdrawn);
        for id in to_be_answered {
            self.answer(leaving, id, Err(RequestError::Gone));
        }
        if !self.ports.values().any(|port| port.name.is_some()) {
            self.vanished.clear();
        } else if let (Some(name), false) = (port.name, port.windows.is_empty()) {
            let windows = port.windows.into_iter().map(BarWindow::without_owner);
            let windows: Vec<BarWindow> = windows.collect();
            self.publish(leaving, &windows, &Descriptor::default());
            self.vanished.insert(leaving, Vanished { name, windows });
            if self.vanished.len() > MAX_PORTS {
                if let Some((oldest, _)) = self.vanished.pop_first() {
                    self.forget(oldest);
                }
            }
        } else {
            self.forget(leaving);
        }
        self.forget_bridges();
        self.settle();
        if let Some(name) = name {
            self.welcome_namesake(name);
        }
    }

    /// Gives a name that has become free to the first endpoint that waits for it.
    fn welcome_namesake(&mut self, name: String) {
        let mut ports = self.ports.iter_mut();
        let next = ports.find_map(|(id, port)| {
            let awaited = port.awaited.take_if(|awaited| awaited.name == name);
            awaited.map(|_| *id)
        });
        let Some(next) = next else {
            return;
        };
        if let Err(reason) = self.welcome(next, name) {
            self.cut_off(next, reason);
        }
    }

    /// Forgets the vanished endpoint with this name: it has attached again, and has no windows yet.
    fn forget_vanished(&mut self, name: &str) {
        let former: Vec<PortId> = self
            .vanished
            .iter()
            .filter(|(_, vanished)| vanished.name == name)
            .map(|(port, _)| *port)
            .collect();
        for port in former {
            self.vanished.remove(&port);
            self.forget(port);
        }
    }

    fn introduce_peers_to(&mut self, newcomer: PortId) {
        let live = self.ports.iter();
        let live = live.map(|(id, port)| (id, &port.windows, port.leases.clone()));
        let vanished = self.vanished.iter();
        let vanished = vanished.map(|(id, gone)| (id, &gone.windows, Descriptor::default()));
        let peers = live
            .chain(vanished)
            .filter(|(_, windows, _)| !windows.is_empty());
        let since = Some(self.last_change);
        let introductions = peers.map(|(peer, windows, leases)| Update {
            peer: *peer,
            windows: windows.clone(),
            leases,
            since,
        });
        let introductions: Vec<Update> = introductions.collect();
        if let Some(newcomer) = self.ports.get_mut(&newcomer) {
            let push = |update| newcomer.updates.push(update);
            introductions.into_iter().for_each(push);
        }
    }

    /// Handles the timing of an endpoint's link, which it sends once, before it announces windows.
    pub(super) fn link(&mut self, from: PortId, timing: LinkTiming) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if !port.announced.is_empty() || port.link.replace(timing).is_some() {
            return Err(Reason::Violation(
                "it sends the timing of its link twice, or after it has announced windows",
            ));
        }
        Ok(())
    }
}
