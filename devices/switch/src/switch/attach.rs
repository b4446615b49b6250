//! Endpoints come and leave.

use super::output::Reason;
use super::port::{Port, Vanished};
use super::{Output, Switch};
use crate::limits::{MAX_PORTS, PROTOCOL};
use crate::message::{LinkTiming, Message, PortId, Refusal, RequestError};
use crate::window::BarWindow;

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
            newcomer.acknowledged = self.last_epoch;
        }
        Ok(())
    }

    /// A connection has ended. The windows of an endpoint stay claimed, without an owner.
    pub(crate) fn leave(&mut self, leaving: PortId) {
        let Some(port) = self.ports.remove(&leaving) else {
            return;
        };
        for id in self.requests.leave(leaving) {
            self.answer(leaving, id, Err(RequestError::Gone));
        }
        if !self.ports.values().any(|port| port.name.is_some()) {
            self.vanished.clear();
        } else if let (Some(name), false) = (port.name, port.windows.is_empty()) {
            let windows = port.windows.into_iter().map(BarWindow::without_owner);
            let windows: Vec<BarWindow> = windows.collect();
            self.publish(leaving, &windows);
            self.vanished.insert(leaving, Vanished { name, windows });
            if self.vanished.len() > MAX_PORTS
                && let Some((oldest, _)) = self.vanished.pop_first()
            {
                self.publish(oldest, &[]);
            }
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
            self.publish(port, &[]);
        }
    }

    fn introduce_peers_to(&mut self, newcomer: PortId) {
        let epoch = self.last_epoch;
        let links = self.ports.iter().filter_map(|(peer, port)| {
            let (peer, timing) = (*peer, port.link.clone()?);
            Some(Output::Send(newcomer, Message::Link { peer, timing }))
        });
        self.outputs.extend(links);
        let live = self.ports.iter().map(|(id, port)| (id, &port.windows));
        let vanished = self.vanished.iter().map(|(id, gone)| (id, &gone.windows));
        let peers = live
            .chain(vanished)
            .filter(|(_, windows)| !windows.is_empty());
        let introductions = peers.map(|(peer, windows)| {
            let (peer, windows) = (*peer, windows.clone());
            let message = Message::Peer {
                epoch,
                peer,
                windows,
            };
            Output::Send(newcomer, message)
        });
        self.outputs.extend(introductions);
    }

    /// An endpoint sends the timing of its link, once.
    pub(super) fn link(&mut self, from: PortId, timing: LinkTiming) -> Result<(), Reason> {
        let port = self.ports.get_mut(&from).ok_or(Reason::Silent)?;
        if port.link.replace(timing.clone()).is_some() {
            return Err(Reason::Violation("it sends the timing of its link twice"));
        }
        let link = Message::Link { peer: from, timing };
        for other in self.ports_that(|port| port.name.is_some()) {
            if other != from {
                self.send(other, link.clone());
            }
        }
        Ok(())
    }
}
