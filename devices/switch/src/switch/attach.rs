//! Endpoints come and leave.

use super::output::Reason;
use super::port::{Port, Vanished};
use super::updates::Update;
use super::{Output, Switch};
use crate::limits::{MAX_PORTS, PROTOCOL};
use crate::message::{LinkTiming, Message, PortId, Refusal, RequestError};
use crate::window::{BarWindow, Descriptor};

impl Switch {
    pub(super) fn hello(
        &mut self,
        port: PortId,
        protocol: u32,
        name: String,
    ) -> Result<(), Reason> {
        let taken = |other: &Port| other.name.as_ref() == Some(&name);
        let refusal = if protocol != PROTOCOL {
            Some(Refusal::Protocol)
        } else if self.ports.values().any(taken) {
            Some(Refusal::NameTaken)
        } else if self.ports_that(|port| port.name.is_some()).len() >= MAX_PORTS {
            Some(Refusal::Full)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.send(port, Message::Refused(refusal));
            return Err(Reason::Refused(refusal));
        }
        self.forget_vanished(&name);
        let mode = self.config.modes.get(&name).copied().unwrap_or_default();
        self.send(port, Message::Welcome { port, mode });
        self.introduce_peers_to(port);
        if let Some(newcomer) = self.ports.get_mut(&port) {
            newcomer.name = Some(name);
        }
        self.update(port);
        Ok(())
    }

    /// A connection has ended. The windows of an endpoint stay claimed, without an owner.
    pub(crate) fn leave(&mut self, leaving: PortId) {
        let Some(port) = self.ports.remove(&leaving) else {
            return;
        };
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
            if self.vanished.len() > MAX_PORTS
                && let Some((oldest, _)) = self.vanished.pop_first()
            {
                self.forget(oldest);
            }
        } else {
            self.forget(leaving);
        }
        self.settle();
    }

    /// An endpoint of this name has attached again, and has no windows yet.
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
        let introductions = peers.map(|(peer, windows, leases)| Update {
            peer: *peer,
            windows: windows.clone(),
            leases,
            epoch: None,
        });
        let introductions: Vec<Update> = introductions.collect();
        if let Some(newcomer) = self.ports.get_mut(&newcomer) {
            let push = |update| newcomer.updates.push(update);
            introductions.into_iter().for_each(push);
        }
    }

    /// An endpoint sends the timing of its link, once and before it announces windows.
    pub(super) fn link(&mut self, from: PortId, timing: LinkTiming) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if !port.windows.is_empty() || port.link.replace(timing).is_some() {
            return Err(Reason::Violation(
                "it sends the timing of its link twice, or after it has announced windows",
            ));
        }
        Ok(())
    }
}
