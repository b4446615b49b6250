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
    /// A window that waits for an answer was announced after the last question.
    is_outdated: bool,
    /// How many answers in a row have left a window withheld.
    retries: u32,
    /// Nobody answers any more.
    is_ended: bool,
}

/// What there is to ask for after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// No endpoint has windows.
    Nothing,
    /// The bridges may be set anew.
    Changes,
    /// A window is withheld.
    Withheld,
}

impl Forwarding {
    pub(super) fn hold(&self, name: &str, window: &BarWindow) -> bool {
        self.known.hold(name, window)
    }

    /// What the port of the endpoint `name` forwards, for a message.
    pub(super) fn of(&self, name: &str) -> String {
        match self.is_unknown {
            true => "something that cannot be told now".to_owned(),
            false => self.known.of(name),
        }
    }

    /// A window has been opened. One that is withheld needs an answer soon.
    pub(super) fn opened(&mut self, is_withheld: bool, now: Instant) {
        if is_withheld {
            let paced = self.answered.map_or(now, |at| at + BRIDGES_PACE);
            self.next = Some(paced.max(now));
            (self.is_outdated, self.retries) = (true, 0);
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
        self.is_outdated = false;
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

    /// Plans the next question after an answer. Whether windows have been withheld for long.
    pub(super) fn plan(&mut self, need: Need, now: Instant) -> bool {
        if need != Need::Withheld {
            self.retries = 0;
        } else if !self.is_outdated {
            self.retries = self.retries.saturating_add(1);
        }
        let pace = BRIDGES_PACE.saturating_mul(1 << self.retries.min(8));
        let after = match need {
            Need::Nothing => None,
            Need::Changes => Some(BRIDGES_INTERVAL),
            Need::Withheld => Some(pace.min(BRIDGES_INTERVAL)),
        };
        self.next = after.map(|after: Duration| now + after);
        need == Need::Withheld && pace >= BRIDGES_INTERVAL
    }

    /// Nobody answers any more. What is known stays.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// When it is time to ask.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let late = self.asked.map(|asked| asked + BRIDGES_TIME_OUT);
        late.or(self.next).filter(|_| !self.is_ended)
    }
}
