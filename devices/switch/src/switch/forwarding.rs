//! What the ports forward, as far as the switch knows, and when it asks.
//!
//! The guest sets the bridges without the switch's knowledge. So the switch asks a second after each answer while an endpoint has windows,
//! and sooner in the first second of a window that lies where its port forwards nothing. It asks one question at a time.

use std::time::{Duration, Instant};

use crate::bridge_windows::BridgeWindows;
use crate::limits::{BRIDGES_INTERVAL, BRIDGES_MIN_INTERVAL, BRIDGES_TIME_OUT};
use crate::window::BarWindow;

/// What the ports forward, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwarding {
    known: BridgeWindows,
    /// The last answer had it, so `known` is up to date.
    is_known: bool,
    /// The number of the last question.
    number: u64,
    /// When it was asked.
    last_asked: Option<Instant>,
    /// It is not answered yet.
    is_asked: bool,
    /// When the next one is asked.
    next: Option<Instant>,
    /// The bridge socket has ended: there are no more answers.
    is_ended: bool,
}

impl Forwarding {
    /// Whether the port of the endpoint `name` forwards all addresses of a window.
    pub(super) fn holds(&self, name: &str, window: &BarWindow) -> bool {
        self.known.holds(name, window)
    }

    /// Why a window of the endpoint `name` is withheld.
    pub(super) fn reason(&self, name: &str) -> String {
        match self.is_known && !self.is_ended {
            true => format!(
                "is outside of what the bridge above it forwards, which is {}",
                self.known.of(name)
            ),
            false => {
                "may be outside of what the bridge above it forwards, which is unknown".to_owned()
            }
        }
    }

    /// A window has been opened: what is known is asked anew in a while, or soon if the window waits for that.
    pub(super) fn window_opened(&mut self, is_withheld: bool, now: Instant) {
        if is_withheld {
            self.next = Some(now);
        } else {
            self.next = self.next.or(Some(now + BRIDGES_INTERVAL));
        }
    }

    /// The number of the next question, if it is time for that.
    pub(super) fn question(&mut self, now: Instant) -> Option<u64> {
        self.deadline().filter(|at| *at <= now)?;
        if self.is_asked {
            log::warn!("no answer for {BRIDGES_TIME_OUT:?}: what the bridges forward is unknown");
            self.is_known = false;
        }
        self.number += 1;
        self.last_asked = Some(now);
        self.is_asked = true;
        self.next = None;
        Some(self.number)
    }

    /// The last question could not be sent.
    pub(super) fn unsent(&mut self, now: Instant) {
        self.is_asked = false;
        self.next = Some(now + BRIDGES_INTERVAL);
    }

    /// Takes the answer to question `number`, none if it is unknown now. Whether that is the last question, and the first answer to it.
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

    /// Plans the next question after an answer. `withheld` is how long the window waits that waits least.
    pub(super) fn plan(&mut self, withheld: Option<Duration>, now: Instant) {
        let after = withheld.map_or(BRIDGES_INTERVAL, |time| {
            time.clamp(BRIDGES_MIN_INTERVAL, BRIDGES_INTERVAL)
        });
        let at = now + after;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// No endpoint has windows: what is known may be of another guest then.
    pub(super) fn forget(&mut self) {
        if !self.is_ended {
            self.known = BridgeWindows::default();
            (self.is_known, self.is_asked, self.next) = (false, false, None);
        }
    }

    /// The bridge socket has ended. What is known stays.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether the bridge socket has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// When it is time to ask.
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
