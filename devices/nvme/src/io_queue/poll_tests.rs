//! Tests of `poll.rs`.

use std::time::{Duration, Instant};

use super::poll::{BATCH_SLEEP, POLL_TIME, PollPolicy, Poller, SHORT_PAUSE, SOON, Wait};

/// A poller, and a clock that only the tests advance.
struct Fixture {
    poller: Poller,
    now: Instant,
}

impl Fixture {
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

    /// Brings work after a pause, which ends a sleep. Returns the number of sleeps, and `true` if
    /// the worker has blocked.
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
    let mut fixture = Fixture::new(PollPolicy::Always);
    assert!((0..10_000).all(|_| fixture.wait(false) == Wait::Poll));
    assert_eq!(Fixture::new(PollPolicy::Never).wait(false), Wait::Block);
}

#[test]
fn adaptive_with_one_outstanding_polls() {
    let mut fixture = Fixture::new(PollPolicy::Adaptive);
    for _ in 0..100 {
        assert_eq!(fixture.work_after(PAUSE, 1), (0, false));
    }
}

#[test]
fn adaptive_sleeps_before_it_blocks_if_the_last_pause_was_short() {
    let mut fixture = Fixture::new(PollPolicy::Adaptive);
    assert_eq!(fixture.work_after(POLL_TIME * 2, 1), (0, true));
    let (sleeps, blocked) = fixture.work_after(POLL_TIME * 2, 1);
    assert!(sleeps > 2 && !blocked, "{sleeps}");
    let (sleeps, blocked) = fixture.work_after(SHORT_PAUSE * 2, 1);
    assert!(sleeps > 20 && blocked, "{sleeps}");
    assert_eq!(fixture.work_after(SHORT_PAUSE * 2, 1), (0, true));
}

#[test]
fn adaptive_with_several_outstanding_sleeps_for_a_batch() {
    let mut fixture = Fixture::new(PollPolicy::Adaptive);
    fixture.work_after(PAUSE, 32);
    for _ in 0..100 {
        assert_eq!(fixture.work_after(PAUSE, 32), (1, false));
    }
    let (_, blocked) = fixture.work_after(Duration::from_secs(1), 1);
    assert!(blocked);
    assert_eq!(fixture.work_after(PAUSE, 1), (0, false), "no batch");
}

#[test]
fn adaptive_does_not_sleep_if_the_guest_is_fast() {
    let mut fixture = Fixture::new(PollPolicy::Adaptive);
    for _ in 0..100 {
        assert_eq!(fixture.work_after(SOON / 2, 32), (0, false));
    }
}

#[test]
fn adaptive_waits_for_no_batch_during_its_own_operations() {
    let mut fixture = Fixture::new(PollPolicy::Adaptive);
    fixture.work_after(PAUSE, 32);
    loop {
        let before = fixture.now;
        match fixture.wait(true) {
            Wait::Block => break,
            _ => assert!(fixture.now - before < BATCH_SLEEP),
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
    assert_eq!(error.to_string(), "must be never, adaptive or always");
}
