//! A worker's wait for commands: it polls the doorbells, sleeps for a fixed time, or blocks until
//! it is notified.
//!
//! A guest with one outstanding command waits for it, so the worker polls for the next one. A guest
//! with several does not wait. Serving each of its commands at once would interrupt it for each,
//! and take a processor from it if the host has few. So the worker sleeps for a fixed time, in
//! which commands add up to a batch. It does not sleep if the next command comes within [`SOON`].
//!
//! A guest that notifies a blocked worker is stopped until its access is answered. So the worker
//! sleeps for short times before it blocks, if the last pause was short.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};
use thiserror::Error;

/// The clock is read at every 16th poll.
const POLLS: u32 = 16;
/// Polling time before the worker sleeps for a batch.
pub(super) const SOON: Duration = Duration::from_micros(5);
/// Length of a sleep for a batch.
pub(super) const BATCH_SLEEP: Duration = Duration::from_micros(200);
/// Polling time for the next command of a guest that waits.
pub(super) const POLL_TIME: Duration = Duration::from_micros(100);
/// Length of the sleeps that follow, repeated, if the last pause was short.
const SHORT_SLEEP: Duration = Duration::from_micros(25);
/// A pause is short up to this time. After it the worker blocks.
pub(super) const SHORT_PAUSE: Duration = Duration::from_millis(1);
/// A guest with fewer outstanding commands waits for them.
const SEVERAL: usize = 4;

/// The behaviour of a worker that finds no work.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownPolicy, parse_err_fn = unknown)]
pub enum PollPolicy {
    /// It blocks at once. The guest's doorbells wake it.
    Never,
    /// It polls or sleeps for a short time, then blocks. The guest may keep doorbells in its own
    /// memory and notify the controller only of those that must wake it (NVMe Base 2.0, 5.8).
    #[default]
    Adaptive,
    /// It polls indefinitely, and so uses a whole processor. The guest may map the doorbells.
    Always,
}

/// A name that is not the name of a policy. The message continues after the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be never, adaptive or always")]
pub struct UnknownPolicy;

fn unknown(_: &str) -> UnknownPolicy {
    UnknownPolicy
}

impl TryFrom<String> for PollPolicy {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let policy = word.parse();
        policy.map_err(|error: UnknownPolicy| format!("`{word}` {error}"))
    }
}

impl From<PollPolicy> for String {
    fn from(policy: PollPolicy) -> Self {
        policy.to_string()
    }
}

/// The next action of a worker that has found no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It polls again at once.
    Poll,
    /// It polls again at this time, or when it is notified. The guest need not ring.
    Sleep(Instant),
    /// It blocks until it is notified, and makes the guest ring.
    Block,
}

/// A worker's waiting state.
#[derive(Debug)]
pub(crate) struct Poller {
    pub(crate) policy: PollPolicy,
    /// The time since which there has been no work, as of the last clock reading.
    idle_since: Option<Instant>,
    /// Polls without work.
    polls: u32,
    /// The worker has slept since there was work.
    has_slept: bool,
    /// Commands that the guest had outstanding recently.
    outstanding: usize,
    /// Length of the last pause.
    last_pause: Duration,
}

impl Poller {
    pub(crate) fn new(policy: PollPolicy) -> Self {
        Self {
            policy,
            idle_since: None,
            polls: 0,
            has_slept: false,
            outstanding: 0,
            last_pause: Duration::MAX,
        }
    }

    /// Returns `true` if there has been a pause without work.
    pub(crate) fn has_paused(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Records that there was work. `outstanding` is the number of outstanding commands of an
    /// interrupt-driven guest; it is used after a pause.
    pub(crate) fn worked(&mut self, outstanding: usize, clock: impl FnOnce() -> Instant) {
        if let Some(since) = self.idle_since.take() {
            let before = self.outstanding.saturating_sub(1);
            self.outstanding = outstanding.max(before);
            self.last_pause = clock().saturating_duration_since(since);
        }
        (self.polls, self.has_slept) = (0, false);
    }

    /// Records that there was no work, and decides how to wait. `is_busy`: an operation of this
    /// worker is in progress, and its end wakes the worker.
    pub(crate) fn wait(
        &mut self,
        is_busy: impl FnOnce() -> bool,
        clock: impl FnOnce() -> Instant,
    ) -> Wait {
        match self.policy {
            PollPolicy::Always => return Wait::Poll,
            PollPolicy::Never => return Wait::Block,
            PollPolicy::Adaptive => {}
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.has_slept && self.polls % POLLS != 0 {
            return Wait::Poll;
        }
        let now = clock();
        let idle = now.saturating_duration_since(*self.idle_since.get_or_insert(now));
        if self.outstanding >= SEVERAL && !self.has_slept && !is_busy() {
            if idle < SOON {
                return Wait::Poll;
            }
            self.has_slept = true;
            Wait::Sleep(now + BATCH_SLEEP)
        } else if idle < POLL_TIME {
            Wait::Poll
        } else if idle.max(self.last_pause) < SHORT_PAUSE {
            self.has_slept = true;
            Wait::Sleep(now + SHORT_SLEEP)
        } else {
            Wait::Block
        }
    }

    /// Records that the worker has blocked.
    pub(crate) fn blocked(&mut self, clock: impl FnOnce() -> Instant) {
        self.worked(0, clock);
        self.outstanding = 0;
    }
}
