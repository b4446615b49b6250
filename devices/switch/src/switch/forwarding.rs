//! When the switch asks what its ports forward.
//!
//! The guest sets the bridges without the switch's knowledge, so it asks: when a window lies where its port forwards nothing, as far as the
//! switch knows, and a second after any other has been opened, as bridges may have been set anew since. No two questions are asked
//! at once.

use std::time::Instant;

use super::announce::level;
use super::{Output, Switch};
use crate::bridge_windows::BridgeWindows;
use crate::limits::{BRIDGES_AGAIN, BRIDGES_PACE, BRIDGES_TIME_OUT};
use crate::message::PortId;
use crate::window::BarWindow;

/// What the ports forward, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwarding {
    known: BridgeWindows,
    /// When the question was asked that is not answered.
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// When the next is asked.
    next: Option<Instant>,
    /// The last question was asked before the last window that needs its answer was announced.
    is_outdated: bool,
}

impl Forwarding {
    pub(super) fn hold(&self, name: &str, window: &BarWindow) -> bool {
        self.known.hold(name, window)
    }

    pub(super) fn of(&self, name: &str) -> String {
        self.known.of(name)
    }

    /// A window has been opened. If it is not held, that is asked for as soon as may be.
    pub(super) fn opened(&mut self, is_held: bool, now: Instant) {
        self.ask_at(if is_held { now + BRIDGES_AGAIN } else { now });
        self.is_outdated |= !is_held && self.asked.is_some();
    }

    /// Takes an answer; none if it cannot be told now. Whether it holds for all windows that have been announced.
    pub(super) fn answer(&mut self, answer: Option<BridgeWindows>, now: Instant) -> bool {
        let is_newest = answer.is_some() && !self.is_outdated;
        self.asked = None;
        self.answered = Some(now);
        if let Some(windows) = answer {
            self.known = windows;
        }
        is_newest
    }

    /// Some window is still not held: that is asked again later.
    pub(super) fn ask_again(&mut self, now: Instant) {
        self.ask_at(now + BRIDGES_AGAIN);
    }

    fn ask_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Whether it is time to ask; then that is done.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        self.asked = Some(now);
        self.next = None;
        self.is_outdated = false;
        true
    }

    /// When it is time to ask.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if let Some(asked) = self.asked {
            return Some(asked + BRIDGES_TIME_OUT);
        }
        let next = self.next?;
        Some(
            self.answered
                .map_or(next, |answered| next.max(answered + BRIDGES_PACE)),
        )
    }
}

impl Switch {
    /// An endpoint has opened a window.
    pub(super) fn opened(&mut self, port: PortId) {
        let Some(port) = self.ports.get_mut(&port) else {
            return;
        };
        port.is_warned = false;
        let is_held = port.windows.len() == port.announced.len();
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.opened(is_held, self.now);
        }
        self.ask();
    }

    /// Asks what the ports forward, if it is time for that.
    pub(super) fn ask(&mut self) {
        let forwarding = self.forwarding.as_mut();
        if forwarding.is_some_and(|forwarding| forwarding.asks(self.now)) {
            self.outputs.push(Output::AskForBridgeWindows);
        }
    }

    /// What the ports forward; none if it cannot be told now.
    pub(crate) fn take_bridge_windows(&mut self, windows: Option<BridgeWindows>, now: Instant) {
        self.now = now;
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        let is_newest = forwarding.answer(windows, now);
        for port in self.ports_that(|port| !port.announced.is_empty()) {
            self.pass_on(port);
        }
        let withheld = self.ports_that(|port| port.windows.len() < port.announced.len());
        if let Some(forwarding) = &mut self.forwarding
            && !withheld.is_empty()
        {
            forwarding.ask_again(now);
        }
        if is_newest {
            withheld.into_iter().for_each(|port| self.warn(port));
        }
        self.settle();
        self.ask();
    }

    /// Logs once which of an endpoint's windows its port does not forward.
    fn warn(&mut self, id: PortId) {
        let (Some(port), Some(forwarding)) = (self.ports.get_mut(&id), &self.forwarding) else {
            return;
        };
        if std::mem::replace(&mut port.is_warned, true) {
            return;
        }
        let name = port.name.as_deref().unwrap_or_default();
        let withheld = |window: &&BarWindow| !port.is_forwarded(window, Some(forwarding));
        for window in port.announced.iter().filter(withheld) {
            log::log!(
                level(&mut self.warnings),
                "port {id} ({name}), BAR{} at {:#x}+{:#x} is outside of what the bridge above it forwards, which is {}: no peer reaches it",
                window.bar,
                window.address,
                window.size,
                forwarding.of(name),
            );
        }
    }
}
