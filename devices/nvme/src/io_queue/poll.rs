//! How a worker waits for commands: it polls the doorbells, sleeps for a fixed time, or blocks until it is notified.
//!
//! A guest with one outstanding command waits for it, so the worker polls for the next one. A guest with several does not wait:
//! to serve each at once would interrupt it for each, and take a processor from it where processors are few. So the worker
//! sleeps for a fixed time, in which commands add up to a batch. A guest that submits its next command within [`SOON`] is too
//! fast for that.
//!
//! A guest that notifies a blocked worker is stopped until its access is answered. So the worker sleeps for short times before
//! it blocks, if the last pause was short.

use std::time::{Duration, Instant};

use strum::{Display, EnumString};
use thiserror::Error;

/// The clock is read at every 16th poll.
const POLLS: u32 = 16;

/// How long the worker polls before it sleeps for a batch.
const SOON: Duration = Duration::from_micros(5);

/// How long it sleeps for a batch.
const BATCH_SLEEP: Duration = Duration::from_micros(200);

/// How long it polls for the next command of a guest that waits.
const PATIENCE: Duration = Duration::from_micros(100);

/// How long it sleeps after that, again and again, if the last pause was short.
const SHORT_SLEEP: Duration = Duration::from_micros(25);

/// A pause is short up to this time. After it the worker blocks.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// A guest with fewer outstanding commands waits for them.
const SEVERAL: usize = 4;

/// What a worker does when it finds no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownPolicy, parse_err_fn = unknown)]
pub enum PollPolicy {
    /// It blocks at once. The guest's doorbells wake it.
    Never,
    /// It polls or sleeps for a short time, then blocks. The guest may keep doorbells in its own memory and notify the
    /// controller only of those that must wake it (NVMe Base 2.0, 5.8).
    #[default]
    Adaptive,
    /// It polls indefinitely, on a processor of its own. The guest may map the doorbells.
    Always,
}

/// A name that is none of a policy. The message continues after the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is none of never, adaptive, always")]
pub struct UnknownPolicy;

fn unknown(_: &str) -> UnknownPolicy {
    UnknownPolicy
}

/// What a worker does next that has found no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It polls again at once.
    Poll,
    /// It polls again at this moment, or when it is notified. The guest need not ring.
    Sleep(Instant),
    /// It blocks until it is notified, and has the guest ring.
    Block,
}

/// A worker's state of waiting.
#[derive(Debug)]
pub(crate) struct Poller {
    pub(crate) policy: PollPolicy,
    /// Since when there has been no work, as far as the clock was read.
    idle_since: Option<Instant>,
    /// Polls without work.
    polls: u32,
    /// Whether it has slept since there was work.
    has_slept: bool,
    /// How many commands the guest had outstanding lately.
    outstanding: usize,
    /// How long the last pause was.
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

    /// Whether there has been a pause without work.
    pub(crate) fn has_paused(&self) -> bool {
        self.idle_since.is_some()
    }

    /// There was work. `outstanding`: how many commands an interrupt-driven guest has with the worker, which counts after a pause.
    pub(crate) fn worked(&mut self, outstanding: usize, clock: impl FnOnce() -> Instant) {
        if let Some(since) = self.idle_since.take() {
            let before = self.outstanding.saturating_sub(1);
            self.outstanding = outstanding.max(before);
            self.last_pause = clock().saturating_duration_since(since);
        }
        (self.polls, self.has_slept) = (0, false);
    }

    /// There was no work. `is_busy`: an operation of the worker's own is in progress, whose end wakes it.
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
        if !self.has_slept && !self.polls.is_multiple_of(POLLS) {
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
        } else if idle < PATIENCE {
            Wait::Poll
        } else if idle.max(self.last_pause) < SHORT_PAUSE {
            self.has_slept = true;
            Wait::Sleep(now + SHORT_SLEEP)
        } else {
            Wait::Block
        }
    }

    /// It has blocked.
    pub(crate) fn blocked(&mut self, clock: impl FnOnce() -> Instant) {
        self.worked(0, clock);
        self.outstanding = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A poller, and a clock that only this moves on.
    struct Scene {
        poller: Poller,
        now: Instant,
    }

    impl Scene {
        fn new(policy: PollPolicy) -> Self {
            Self {
                poller: Poller::new(policy),
                now: Instant::now(),
            }
        }

        /// Each poll takes 50 ns.
        fn wait(&mut self, is_busy: bool) -> Wait {
            self.now += Duration::from_nanos(50);
            let wait = self.poller.wait(|| is_busy, || self.now);
            if let Wait::Sleep(end) = wait {
                self.now = end;
            }
            wait
        }

        /// Work comes after a pause, which ends a sleep; how often it has slept, and whether it has blocked.
        fn work_after(&mut self, pause: Duration, outstanding: usize) -> (usize, bool) {
            let end = self.now + pause;
            let mut sleeps = 0;
            while self.now < end {
                match self.wait(false) {
                    Wait::Poll => {}
                    Wait::Sleep(_) => sleeps += 1,
                    Wait::Block => {
                        self.now = end;
                        self.poller.blocked(|| self.now);
                        return (sleeps, true);
                    }
                }
            }
            self.poller.worked(outstanding, || self.now);
            (sleeps, false)
        }
    }

    const PAUSE: Duration = Duration::from_micros(20);

    #[test]
    fn always_polls_and_never_blocks_at_once() {
        let mut scene = Scene::new(PollPolicy::Always);
        assert!((0..10_000).all(|_| scene.wait(false) == Wait::Poll));
        assert_eq!(Scene::new(PollPolicy::Never).wait(false), Wait::Block);
    }

    #[test]
    fn adaptive_with_one_outstanding_polls() {
        let mut scene = Scene::new(PollPolicy::Adaptive);
        for _ in 0..100 {
            assert_eq!(scene.work_after(PAUSE, 1), (0, false));
        }
    }

    #[test]
    fn adaptive_sleeps_before_it_blocks_if_the_last_pause_was_short() {
        let mut scene = Scene::new(PollPolicy::Adaptive);
        assert_eq!(scene.work_after(PATIENCE * 2, 1), (0, true));
        let (sleeps, blocked) = scene.work_after(PATIENCE * 2, 1);
        assert!(sleeps > 2 && !blocked, "{sleeps}");
        let (sleeps, blocked) = scene.work_after(SHORT_PAUSE * 2, 1);
        assert!(sleeps > 20 && blocked, "{sleeps}");
        assert_eq!(scene.work_after(SHORT_PAUSE * 2, 1), (0, true));
    }

    #[test]
    fn adaptive_with_several_outstanding_sleeps_for_a_batch() {
        let mut scene = Scene::new(PollPolicy::Adaptive);
        scene.work_after(PAUSE, 32);
        for _ in 0..100 {
            assert_eq!(scene.work_after(PAUSE, 32), (1, false));
        }
        let (_, blocked) = scene.work_after(Duration::from_secs(1), 1);
        assert!(blocked);
        assert_eq!(scene.work_after(PAUSE, 1), (0, false), "no batch");
    }

    #[test]
    fn adaptive_does_not_sleep_beside_a_fast_guest() {
        let mut scene = Scene::new(PollPolicy::Adaptive);
        for _ in 0..100 {
            assert_eq!(scene.work_after(SOON / 2, 32), (0, false));
        }
    }

    #[test]
    fn adaptive_waits_for_no_batch_beside_its_own_operations() {
        let mut scene = Scene::new(PollPolicy::Adaptive);
        scene.work_after(PAUSE, 32);
        loop {
            let before = scene.now;
            match scene.wait(true) {
                Wait::Block => break,
                _ => assert!(scene.now - before < BATCH_SLEEP),
            }
        }
    }

    #[test]
    fn every_policy_has_a_name() {
        for (policy, name) in [
            (PollPolicy::Never, "never"),
            (PollPolicy::Adaptive, "adaptive"),
            (PollPolicy::Always, "always"),
        ] {
            let parsed = (name.parse(), policy.to_string());
            assert_eq!(parsed, (Ok(policy), name.into()));
        }
        let error = "sometimes".parse::<PollPolicy>().unwrap_err();
        assert_eq!(error.to_string(), "is none of never, adaptive, always");
    }
}
