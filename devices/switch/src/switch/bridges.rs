//! With a bridge socket, windows are passed on only if the port above their endpoint forwards them.

use std::time::Instant;

use super::{Output, Switch};
use crate::bridge_windows::BridgeWindows;
use crate::limits::BRIDGES_INTERVAL;
use crate::message::PortId;
use crate::window::{BarWindow, Descriptor};

impl Switch {
    /// An endpoint has announced other windows.
    pub(super) fn announced(&mut self, port: PortId, is_opening: bool) {
        let Some(port) = self.ports.get_mut(&port) else {
            return;
        };
        port.note_withheld(self.now);
        let is_withheld = !port.withheld.is_empty();
        if let Some(forwarding) = self.forwarding.as_mut().filter(|_| is_opening) {
            forwarding.window_opened(is_withheld, self.now);
        }
        self.forget_bridges();
        self.log_withheld();
        self.ask();
    }

    /// Asks for the windows that the ports forward, if it is time to.
    pub(super) fn ask(&mut self) {
        let forwarding = self.forwarding.as_mut();
        if let Some(number) = forwarding.and_then(|forwarding| forwarding.question(self.now)) {
            self.outputs.push(Output::AskForBridgeWindows(number));
        }
    }

    /// Handles that the last question could not be sent.
    pub(crate) fn bridge_question_unsent(&mut self) {
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.unsent(self.now);
        }
    }

    /// Takes the answer to question `number`: the windows that the ports forward, or `None` if they
    /// are unknown at the moment. Ignores the answer to an earlier question.
    pub(crate) fn take_bridge_windows(
        &mut self,
        number: u64,
        windows: Option<BridgeWindows>,
        now: Instant,
    ) {
        self.now = now;
        let forwarding = self.forwarding.as_mut();
        if !forwarding.is_some_and(|forwarding| forwarding.answer(number, windows)) {
            return;
        }
        // Windows are closed first, because a port may have gained addresses that another one has
        // lost.
        let ports = self.ports_that(|port| !port.announced.is_empty());
        ports.iter().for_each(|port| self.close_unforwarded(*port));
        self.close_vanished();
        for port in ports {
            self.pass_on(port);
        }
        for port in self.ports.values_mut() {
            port.note_withheld(now);
        }
        let withheld = self.ports.values().flat_map(|port| &port.withheld);
        let least = withheld
            .map(|one| now.saturating_duration_since(one.since))
            .min();
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.plan(least, now);
        }
        self.forget_bridges();
        self.log_withheld();
        self.settle();
        self.ask();
    }

    /// Handles the end of the bridge socket.
    pub(crate) fn end_bridge_windows(&mut self) {
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.end();
        }
        self.log_withheld();
    }

    /// Once no endpoint has windows, forgets the bridge windows and stops asking.
    pub(super) fn forget_bridges(&mut self) {
        let has_windows = self.ports.values().any(|port| !port.announced.is_empty());
        if has_windows || !self.vanished.is_empty() {
            return;
        }
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.forget();
        }
    }

    /// Closes those of an endpoint's windows that its port no longer forwards.
    fn close_unforwarded(&mut self, from: PortId) {
        let Some(port) = self.ports.get_mut(&from) else {
            return;
        };
        let forwarded = port.forwarded(self.forwarding.as_ref());
        let former = port.windows.len();
        let is_forwarded =
            |window: &BarWindow| forwarded.iter().any(|one| one.has_range_of(window));
        port.windows.retain(is_forwarded);
        if port.windows.len() < former {
            let (windows, leases) = (port.windows.clone(), port.leases.clone());
            self.publish(from, &windows, &leases);
        }
    }

    /// Does the same for endpoints that have vanished.
    fn close_vanished(&mut self) {
        let Some(forwarding) = &self.forwarding else {
            return;
        };
        let mut changed = Vec::new();
        for (id, gone) in &mut self.vanished {
            let former = gone.windows.len();
            gone.windows
                .retain(|window| forwarding.holds(&gone.name, window));
            if gone.windows.len() < former {
                changed.push((*id, gone.windows.clone()));
            }
        }
        for (id, windows) in changed {
            if windows.is_empty() {
                self.vanished.remove(&id);
                self.forget(id);
            } else {
                self.publish(id, &windows, &Descriptor::default());
            }
        }
    }

    /// Logs each window that has been withheld for long, once.
    pub(super) fn log_withheld(&mut self) {
        let Some(forwarding) = &self.forwarding else {
            return;
        };
        for (id, port) in &mut self.ports {
            let name = port.name.as_deref().unwrap_or_default();
            for withheld in &mut port.withheld {
                let is_late =
                    forwarding.is_ended() || withheld.since + BRIDGES_INTERVAL <= self.now;
                if !is_late || std::mem::replace(&mut withheld.is_logged, true) {
                    continue;
                }
                let BarWindow { bar, range, .. } = &withheld.window;
                log::warn!(
                    "port {id} ({name}), BAR{bar} at {}+{:#x} {}: no peer reaches it through the switch",
                    range.first(),
                    range.size(),
                    forwarding.reason(name),
                );
            }
        }
    }
}
