//! The windows that the ports forward, as far as the switch knows, and the times of its questions.
//!
//! The guest sets the bridges without the switch's knowledge. So the switch asks a second after
//! each answer while an endpoint has windows, and sooner in the first second of a window that its
//! port does not forward. It asks one question at a time.

use std::time::{Duration, Instant};

use crate::bridge_windows::BridgeWindows;
use crate::limits::{BRIDGES_INTERVAL, BRIDGES_MIN_INTERVAL, BRIDGES_TIME_OUT};
use crate::window::BarWindow;

/// The last known windows of the ports.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwarding {
    known: BridgeWindows,
    /// The last answer had the windows, so `known` is up to date.
    is_known: bool,
    /// The number of the last question.
    number: u64,
    /// The time of the last question.
    last_asked: Option<Instant>,
    /// The last question is not answered yet.
    is_asked: bool,
    /// The time of the next question.
    next: Option<Instant>,
    /// The bridge socket has ended: there are no more answers.
    is_ended: bool,
}

impl Forwarding {
    /// Returns `true` if the port of the endpoint `name` forwards all addresses of a window.
    pub(super) fn holds(&self, name: &str, window: &BarWindow) -> bool {
        self.known.holds(name, window)
    }

    /// Returns the reason why a window of the endpoint `name` is withheld.
    pub(super) fn reason(&self, name: &str) -> String {
        match self.is_known && !self.is_ended {
            true => format!(
                "is outside of the range that the bridge above it forwards, {}",
                self.known.of(name)
            ),
            false => {
                "may be outside of the range that the bridge above it forwards, which is unknown"
                    .to_owned()
            }
        }
    }

    /// Plans a question for a window that has been opened: at once if the window is withheld,
    /// otherwise after the usual interval.
    pub(super) fn window_opened(&mut self, is_withheld: bool, now: Instant) {
        if is_withheld {
            self.next = Some(now);
        } else {
            self.next = self.next.or(Some(now + BRIDGES_INTERVAL));
        }
    }

    /// Returns the number of the next question, if it is time for one.
    pub(super) fn question(&mut self, now: Instant) -> Option<u64> {
        self.deadline().filter(|at| *at <= now)?;
        if self.is_asked {
            log::warn!(
                "no answer for {BRIDGES_TIME_OUT:?}: the windows of the bridges are unknown"
            );
            self.is_known = false;
        }
        self.number += 1;
        self.last_asked = Some(now);
        self.is_asked = true;
        self.next = None;
        Some(self.number)
    }

    /// Records that the last question could not be sent.
    pub(super) fn unsent(&mut self, now: Instant) {
        self.is_asked = false;
        self.next = Some(now + BRIDGES_INTERVAL);
    }

    /// Takes the answer to question `number`, or `None` if the windows are unknown at the moment.
    /// Returns `true` if that is the last question, and this its first answer.
    pub(super) fn answer(&mut self, number: u64, answer: Option<BridgeWindows>) -> bool {
        if number != self.number || !std::mem::take(&mut self.is_asked) {
            return false;
        }
        self.is_known = answer.is_some();
        if let Some(windows) = answer {
            self.known = windows;
        }
        true
    }

    /// Plans the next question after an answer. `withheld` is the shortest time that a window has
    /// waited.
    pub(super) fn plan(&mut self, withheld: Option<Duration>, now: Instant) {
        let after = withheld.map_or(BRIDGES_INTERVAL, |time| {
            time.clamp(BRIDGES_MIN_INTERVAL, BRIDGES_INTERVAL)
        });
        let at = now + after;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Forgets the known windows: no endpoint has windows, so the next guest may be another one.
    pub(super) fn forget(&mut self) {
        if !self.is_ended {
            self.known = BridgeWindows::default();
            (self.is_known, self.is_asked, self.next) = (false, false, None);
        }
    }

    /// Records that the bridge socket has ended. The known windows stay.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Returns `true` if the bridge socket has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns the time of the next question.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_ended {
            return None;
        }
        match self.last_asked {
            Some(asked) if self.is_asked => Some(asked + BRIDGES_TIME_OUT),
            Some(asked) => Some(self.next?.max(asked + BRIDGES_MIN_INTERVAL)),
            None => self.next,
        }
    }
}
