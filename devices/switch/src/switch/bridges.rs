//! Windows are passed on where the port above their endpoint forwards, if somebody says what that is.

use std::time::Instant;

use super::forwarding::Need;
use super::{Output, Switch};
use crate::bridge_windows::BridgeWindows;
use crate::message::PortId;
use crate::window::{BarWindow, Descriptor};

impl Switch {
    /// An endpoint has opened a window.
    pub(super) fn opened(&mut self, port: PortId) {
        let Some(port) = self.ports.get_mut(&port) else {
            return;
        };
        port.is_warned = false;
        let is_withheld = port.is_withheld();
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.opened(is_withheld, self.now);
        }
        self.ask();
    }

    /// Asks what the ports forward, if it is time for that.
    pub(super) fn ask(&mut self) {
        let forwarding = self.forwarding.as_mut();
        if let Some(number) = forwarding.and_then(|forwarding| forwarding.question(self.now)) {
            self.outputs.push(Output::AskForBridgeWindows(number));
        }
    }

    /// The answer to question `number`: what the ports forward, none if it cannot be told now. That of an earlier question does nothing.
    pub(crate) fn take_bridge_windows(
        &mut self,
        number: u64,
        windows: Option<BridgeWindows>,
        now: Instant,
    ) {
        self.now = now;
        let forwarding = self.forwarding.as_mut();
        if !forwarding.is_some_and(|forwarding| forwarding.answer(number, windows, now)) {
            return;
        }
        // First all that closes: what one port has gained another may have lost.
        let ports = self.ports_that(|port| !port.announced.is_empty());
        ports.iter().for_each(|port| self.withdraw(*port));
        self.withdraw_vanished();
        for port in ports {
            self.pass_on(port);
        }
        self.plan();
        self.settle();
        self.ask();
    }

    /// Nobody says any more what the ports forward.
    pub(crate) fn end_bridge_windows(&mut self) {
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.end();
        }
    }

    /// Closes those of an endpoint's windows that its port does not forward any more.
    fn withdraw(&mut self, from: PortId) {
        let forwarding = self.forwarding.as_ref();
        let Some(port) = self.ports.get_mut(&from) else {
            return;
        };
        let former = port.windows.len();
        let name = port.name.clone().unwrap_or_default();
        let is_held = |window: &BarWindow| forwarding.is_none_or(|known| known.hold(&name, window));
        port.windows.retain(is_held);
        if port.windows.len() < former {
            let (windows, leases) = (port.windows.clone(), port.leases.clone());
            self.publish(from, &windows, &leases);
        }
    }

    /// Likewise those of endpoints that have vanished.
    fn withdraw_vanished(&mut self) {
        let Some(forwarding) = &self.forwarding else {
            return;
        };
        let mut changed = Vec::new();
        for (id, gone) in &mut self.vanished {
            let former = gone.windows.len();
            gone.windows
                .retain(|window| forwarding.hold(&gone.name, window));
            if gone.windows.len() < former {
                changed.push((*id, gone.windows.clone()));
            }
        }
        for (id, windows) in changed {
            self.publish(id, &windows, &Descriptor::default());
        }
    }

    /// Plans the next question, and logs once for each opening what has been withheld for long.
    fn plan(&mut self) {
        let ports = || self.ports.values();
        let need = if ports().any(|port| port.is_withheld()) {
            Need::Withheld
        } else if ports().any(|port| !port.announced.is_empty()) || !self.vanished.is_empty() {
            Need::Changes
        } else {
            Need::Nothing
        };
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        if !forwarding.plan(need, self.now) {
            return;
        }
        for (id, port) in &mut self.ports {
            let is_new = port.is_withheld() && !std::mem::replace(&mut port.is_warned, true);
            let name = port.name.as_deref().unwrap_or_default();
            let withheld = |window: &&BarWindow| is_new && !forwarding.hold(name, window);
            for window in port.announced.iter().filter(withheld) {
                log::warn!(
                    "port {id} ({name}), BAR{} at {:#x}+{:#x} is outside of what the bridge above it forwards, which is {}: no peer reaches it",
                    window.bar,
                    window.address,
                    window.size,
                    forwarding.of(name),
                );
            }
        }
    }
}
