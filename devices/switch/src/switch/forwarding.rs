//! What the ports forward, as far as the switch knows, and when it asks.
//!
//! The guest sets the bridges without the switch's knowledge. So the switch asks every second while an endpoint has windows, and sooner
//! while one lies where its port forwards nothing. It asks one question at a time.

use std::time::{Duration, Instant};

use crate::bridge_windows::BridgeWindows;
use crate::limits::{BRIDGES_INTERVAL, BRIDGES_PACE, BRIDGES_TIME_OUT};
use crate::window::BarWindow;

/// What the ports forward, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwarding {
    known: BridgeWindows,
    /// The last answer was that it cannot be told.
    is_unknown: bool,
    /// The number of the last question.
    number: u64,
    /// When it was asked, until it is answered.
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// When the next one is asked.
    next: Option<Instant>,
    /// Nobody answers any more.
    is_ended: bool,
}

impl Forwarding {
    /// Whether the port of the endpoint `name` forwards all addresses of a window.
    pub(super) fn holds(&self, name: &str, window: &BarWindow) -> bool {
        self.known.holds(name, window)
    }

    /// Why a window of the endpoint `name` is withheld.
    pub(super) fn reason(&self, name: &str) -> String {
        match self.is_unknown || self.is_ended {
            true => "may be outside of what the bridge above it forwards, which nobody can tell"
                .to_owned(),
            false => format!(
                "is outside of what the bridge above it forwards, which is {}",
                self.known.of(name)
            ),
        }
    }

    /// A window has been opened: what is known is to be asked anew in a while, or soon if the window waits for that.
    pub(super) fn window_opened(&mut self, is_withheld: bool, now: Instant) {
        if is_withheld {
            let paced = self.answered.map_or(now, |at| at + BRIDGES_PACE);
            self.next = Some(paced.max(now));
        } else {
            self.next = self.next.or(Some(now + BRIDGES_INTERVAL));
        }
    }

    /// The number of the next question, if it is time for that.
    pub(super) fn question(&mut self, now: Instant) -> Option<u64> {
        self.deadline().filter(|at| *at <= now)?;
        if self.asked.is_some() {
            log::warn!("nobody has said for {BRIDGES_TIME_OUT:?} what the ports forward");
        }
        self.number += 1;
        self.asked = Some(now);
        self.next = None;
        Some(self.number)
    }

    /// Takes the answer to question `number`, none if it cannot be told now. Whether that is the last question, and the first answer to it.
    pub(super) fn answer(
        &mut self,
        number: u64,
        answer: Option<BridgeWindows>,
        now: Instant,
    ) -> bool {
        if number != self.number || self.asked.take().is_none() {
            return false;
        }
        self.answered = Some(now);
        self.is_unknown = answer.is_none();
        if let Some(windows) = answer {
            self.known = windows;
        }
        true
    }

    /// Plans the next question after an answer. `withheld` is how long the window waits that waits least.
    pub(super) fn plan(&mut self, withheld: Option<Duration>, now: Instant) {
        let after = withheld.map_or(BRIDGES_INTERVAL, |time| {
            time.clamp(BRIDGES_PACE, BRIDGES_INTERVAL)
        });
        let soonest = now + BRIDGES_PACE;
        let next = self.next.map_or(now + after, |next| next.min(now + after));
        self.next = Some(next.max(soonest));
    }

    /// No endpoint has windows: what is known may be of another guest then.
    pub(super) fn forget(&mut self) {
        if !self.is_ended {
            self.known = BridgeWindows::default();
            (self.asked, self.next) = (None, None);
        }
    }

    /// Nobody answers any more. What is known stays.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether nobody answers any more.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// When it is time to ask.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let late = self.asked.map(|asked| asked + BRIDGES_TIME_OUT);
        late.or(self.next).filter(|_| !self.is_ended)
    }
}
