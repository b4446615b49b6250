//! How a worker waits for work: it looks without a pause, naps, or sleeps.
//!
//! A guest that has one command with us waits for it, so the worker looks without a pause, as long as work usually comes
//! soon; through the greater part of a long pause it naps ("hybrid polling"). A guest that submits further commands
//! while it has others with us does not wait. To serve each of them at once would have it interrupted for each, and
//! takes a processor from it where processors are short: so they gather ([`Gathering`]).

use std::time::{Duration, Instant};

use super::gathering::{Gathering, NAP, SLOW, Verdict};
use crate::poll::Poll;

/// How often it looks before it looks at the clock, too.
const LOOKS: u32 = 16;

/// How long it looks for work that usually comes soon, at least and at most.
const PATIENCE: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(150)];

/// The shortest nap that is worth the way to sleep and back.
const SHORTEST: Duration = Duration::from_micros(15);

/// How long it naps and looks now and then, if work usually comes within this time, before it sleeps.
const WATCH: Duration = Duration::from_millis(1);

/// A pause that is longer than this counts as one of this length. Commands that gather are not napped beside for longer.
const LONG: Duration = Duration::from_millis(10);

/// How much more often than not a guest has several commands with us before they are left to gather: at first, and at most
/// after that was not worth it.
const PROOF: [u32; 2] = [8, 1024];

/// What a worker does that has found nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It looks again at once.
    Look,
    /// It looks again at this moment, or when somebody knocks. The guest need not ring.
    Nap(Instant),
    /// It sleeps until the guest rings.
    Sleep,
}

/// A worker's pace.
#[derive(Debug)]
pub(super) struct Pace {
    poll: Poll,
    idle: Idle,
    /// How long a pause is, usually.
    pause: Duration,
    /// How long it looks for work.
    patience: Duration,
    streak: Option<Streak>,
    /// How long that must become before commands gather.
    proof: u32,
    gathering: Option<Gathering>,
}

/// There has been nothing to do.
#[derive(Debug, Default)]
struct Idle {
    /// Since when, as far as somebody has looked at the clock.
    since: Option<Instant>,
    /// How often nothing was found since then, or since the nap.
    looks: u32,
    /// Whether it has napped since then.
    napped: bool,
    /// Whether it has lost patience since then.
    gave_up: bool,
    /// Whether something of its own was under way meanwhile.
    waited: bool,
}

/// The guest had several commands with us when one came after a pause, again and again.
#[derive(Debug)]
struct Streak {
    /// How much more often than not. It is over at 0.
    several: u32,
    /// Since when, and how many commands have been served since then.
    since: Instant,
    served: u32,
}

impl Pace {
    pub(super) fn new(poll: Poll) -> Self {
        let ([patience, _], [proof, _]) = (PATIENCE, PROOF);
        Self {
            poll,
            idle: Idle::default(),
            pause: Duration::ZERO,
            patience,
            streak: None,
            proof,
            gathering: None,
        }
    }

    /// Whether commands wait for others.
    pub(super) fn gathers(&self) -> bool {
        self.gathering.is_some()
    }

    /// Whether so many commands that wait for others are to be served now; `at_leisure`: the guest has taken all
    /// completions.
    pub(super) fn have_gathered(
        &mut self,
        waiting: u32,
        at_leisure: bool,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let Some(gathering) = &mut self.gathering else {
            return true;
        };
        let verdict = gathering.look(waiting, at_leisure, now());
        if verdict == Verdict::GiveUp {
            let [least, most] = PROOF;
            self.proof = if gathering.was_worth() {
                least
            } else {
                (self.proof * 2).min(most)
            };
            self.gather_no_more();
        }
        verdict != Verdict::Wait
    }

    fn gather_no_more(&mut self) {
        self.gathering = None;
        self.streak = None;
    }

    /// Whether it matters how many commands the guest has with us, if there is something to do now.
    pub(super) fn asks_for_several(&self) -> bool {
        self.idle.since.is_some() && !self.gathers()
    }

    /// There was something to do. `several`, if it was asked for: the guest has more than one command with us.
    pub(super) fn worked(&mut self, several: bool, now: impl FnOnce() -> Instant) {
        let idle = std::mem::take(&mut self.idle);
        let Some(since) = idle.since.filter(|_| !self.gathers() && !idle.waited) else {
            return;
        };
        let now = now();
        if idle.napped && idle.looks < LOOKS {
            // The guest has waited for the nap to end: how long is not known, but the nap was too long.
            self.pause /= 2;
        } else {
            self.learn(now.saturating_duration_since(since), idle.gave_up);
        }
        self.gather_if_proved(several, now);
    }

    /// So many commands have been served.
    pub(super) fn served(&mut self, count: u32) {
        if let Some(streak) = &mut self.streak {
            streak.served = streak.served.saturating_add(count);
        }
    }

    /// Has commands gather if the guest has several with us, again and again, and has them served slowly.
    fn gather_if_proved(&mut self, several: bool, now: Instant) {
        let Some(streak) = &mut self.streak else {
            self.streak = several.then_some(Streak {
                several: 1,
                since: now,
                served: 0,
            });
            return;
        };
        if !several {
            streak.several -= 1;
            self.streak.take_if(|streak| streak.several == 0);
            return;
        }
        streak.several += 1;
        if streak.several >= self.proof {
            let each = now.saturating_duration_since(streak.since) / streak.served.max(1);
            self.gather_no_more();
            self.gathering = (each >= SLOW).then(|| Gathering::new(now, each));
        }
    }

    /// Nothing was found once more. `waits`: something of its own is under way, whose end says nothing of the guest.
    pub(super) fn rest(
        &mut self,
        waits: impl FnOnce() -> bool,
        now: impl FnOnce() -> Instant,
    ) -> Rest {
        match self.poll {
            Poll::Always => return Rest::Look,
            Poll::Never => return Rest::Sleep,
            Poll::Adaptive => {}
        }
        self.idle.looks = self.idle.looks.wrapping_add(1);
        if !self.gathers() && !self.idle.gave_up && !self.idle.looks.is_multiple_of(LOOKS) {
            return Rest::Look;
        }
        let now = now();
        let idle = now.saturating_duration_since(*self.idle.since.get_or_insert(now));
        let waits = waits();
        self.idle.waited |= waits;
        if let Some(gathering) = &self.gathering {
            let most = if gathering.has_some() { LONG } else { WATCH };
            if idle < most {
                return Rest::Nap(gathering.until(now));
            }
            // A nap may have been a long one. The guest does not ring for what it has submitted, so all that waits is served
            // before anybody sleeps.
            self.gather_no_more();
            return Rest::Look;
        }
        if idle >= self.patience {
            self.idle.gave_up = true;
            return if self.pause < WATCH && idle < WATCH {
                Rest::Nap(now + NAP)
            } else {
                Rest::Sleep
            };
        }
        let nap = self.pause * 5 / 8;
        if waits || self.idle.napped || nap < SHORTEST || nap > self.patience {
            return Rest::Look;
        }
        (self.idle.napped, self.idle.looks) = (true, 0);
        Rest::Nap(now + nap)
    }

    /// It has slept.
    pub(super) fn slept(&mut self, now: impl FnOnce() -> Instant) {
        let idle = std::mem::take(&mut self.idle);
        if let Some(since) = idle.since {
            self.learn(now().saturating_duration_since(since), idle.gave_up);
        }
        self.gather_no_more();
    }

    /// Work has come after so long. If it `gave_up` before that, it looks longer the next time if that would have found the
    /// work, and less long if work is rare.
    fn learn(&mut self, pause: Duration, gave_up: bool) {
        self.pause = (self.pause * 7 + pause.min(LONG)) / 8;
        if gave_up {
            let [least, most] = PATIENCE;
            let patience = if pause < most {
                self.patience * 2
            } else {
                self.patience / 2
            };
            self.patience = patience.clamp(least, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker's day, with a clock that only this moves on.
    struct Day {
        pace: Pace,
        now: Instant,
    }

    impl Day {
        fn new(poll: Poll) -> Self {
            Self {
                pace: Pace::new(poll),
                now: Instant::now(),
            }
        }

        /// The worker has just begun to let commands gather.
        fn of_a_slow_guest() -> Self {
            let mut day = Self::new(Poll::Adaptive);
            while !day.pace.gathers() {
                day.work_after(SOON, true);
            }
            day
        }

        fn have_gathered(&mut self, waiting: u32, at_leisure: bool) -> bool {
            self.pace.have_gathered(waiting, at_leisure, || self.now)
        }

        /// Each look takes 50 ns.
        fn rest(&mut self) -> Rest {
            self.now += Duration::from_nanos(50);
            let rest = self.pace.rest(|| false, || self.now);
            if let Rest::Nap(until) = rest {
                self.now = until;
            }
            rest
        }

        /// Work comes after this time, in which the worker rests as it likes; what it did last.
        fn work_after(&mut self, pause: Duration, several: bool) -> Rest {
            let end = self.now + pause;
            let mut rest = Rest::Look;
            while self.now < end && rest != Rest::Sleep {
                rest = self.rest();
            }
            self.now = self.now.max(end);
            match rest {
                Rest::Sleep => self.pace.slept(|| self.now),
                _ => {
                    self.pace.served(1);
                    self.pace.worked(several, || self.now);
                }
            }
            rest
        }

        /// How long it looks and naps when nothing comes.
        fn until_sleep(&mut self) -> Duration {
            let start = self.now;
            while self.rest() != Rest::Sleep {}
            self.pace.slept(|| self.now + Duration::from_secs(1));
            self.now - start
        }
    }

    const SOON: Duration = Duration::from_micros(10);

    #[test]
    fn one_never_rests_and_one_sleeps_at_once() {
        let mut day = Day::new(Poll::Always);
        assert!((0..10_000).all(|_| day.rest() == Rest::Look));
        assert_eq!(Day::new(Poll::Never).rest(), Rest::Sleep);
    }

    #[test]
    fn it_looks_longer_if_that_would_have_found_the_work_and_less_long_if_work_is_rare() {
        let mut day = Day::new(Poll::Adaptive);
        let mut patience_after = |pause| {
            day.work_after(Duration::from_micros(pause), false);
            day.pace.patience.as_micros()
        };
        assert_eq!(
            [(); 5].map(|()| patience_after(120)),
            [40, 80, 150, 150, 150]
        );
        assert_eq!([(); 4].map(|()| patience_after(200)), [75, 37, 20, 20]);
    }

    #[test]
    fn it_naps_where_work_comes_within_a_millisecond_and_sleeps_where_it_does_not() {
        let mut day = Day::new(Poll::Adaptive);
        let rest = day.work_after(Duration::from_micros(400), false);
        assert!(matches!(rest, Rest::Nap(_)), "{rest:?}");
        assert!(day.until_sleep() < WATCH + NAP * 2);
        let rests = [(); 3].map(|()| day.work_after(Duration::from_millis(50), false));
        assert_eq!(rests, [Rest::Sleep; 3]);
        let [least, _] = PATIENCE;
        assert!(day.until_sleep() < least * 2);
    }

    #[test]
    fn it_naps_through_the_greater_part_of_a_usual_pause() {
        let mut day = Day::new(Poll::Adaptive);
        for _ in 0..40 {
            day.work_after(Duration::from_micros(100), false);
        }
        let start = day.now;
        let nap = std::iter::repeat_with(|| day.rest()).find(|rest| *rest != Rest::Look);
        let Some(Rest::Nap(until)) = nap else {
            panic!("{nap:?}");
        };
        let nap = until - start;
        assert!(
            nap > Duration::from_micros(50) && nap < Duration::from_micros(75),
            "{nap:?}"
        );
    }

    #[test]
    fn the_end_of_its_own_operations_tells_nothing_of_the_guest() {
        let mut day = Day::new(Poll::Adaptive);
        for _ in 0..40 {
            day.work_after(Duration::from_micros(100), false);
        }
        let pause = day.pace.pause;
        for _ in 0..1000 {
            day.now += Duration::from_nanos(50);
            assert_eq!(day.pace.rest(|| true, || day.now), Rest::Look);
        }
        day.pace.worked(false, || day.now);
        assert_eq!(day.pace.pause, pause);
    }

    #[test]
    fn commands_gather_if_the_guest_has_several_with_us_again_and_again() {
        let mut day = Day::new(Poll::Adaptive);
        for _ in 0..7 {
            day.work_after(SOON, true);
            assert!(!day.pace.gathers());
        }
        day.work_after(SOON, true);
        assert!(day.pace.gathers());
        assert!(!day.have_gathered(1, true));
        assert!(day.have_gathered(32, true));
    }

    #[test]
    fn they_do_not_if_it_waits_for_each_or_is_fast() {
        for (pause, several) in [(SOON, false), (Duration::from_micros(1), true)] {
            let mut day = Day::new(Poll::Adaptive);
            for _ in 0..100 {
                day.work_after(pause, several);
            }
            assert!(!day.pace.gathers(), "{pause:?}");
            assert!(day.have_gathered(1, true));
        }
    }

    #[test]
    fn who_has_gathered_in_vain_takes_longer_to_do_it_again() {
        let mut day = Day::new(Poll::Adaptive);
        let mut proofs = Vec::new();
        for _ in 0..3 {
            let mut proof = 0;
            while !day.pace.gathers() {
                day.work_after(SOON, true);
                proof += 1;
            }
            proofs.push(proof);
            while day.pace.gathers() {
                day.have_gathered(1, true);
            }
        }
        assert_eq!(proofs, [8, 16, 32]);
    }

    #[test]
    fn a_worker_that_gathers_sleeps_at_last() {
        let mut day = Day::of_a_slow_guest();
        assert_eq!(day.rest(), Rest::Nap(day.now));
        assert!(day.until_sleep() < WATCH + NAP * 2);
        assert!(!day.pace.gathers());
    }

    #[test]
    fn whoever_overslept_serves_what_waits_before_it_sleeps() {
        let mut day = Day::of_a_slow_guest();
        while !day.have_gathered(1, false) {
            assert_ne!(day.rest(), Rest::Sleep);
            day.now += WATCH;
        }
        assert!(day.until_sleep() <= WATCH);
        assert!(!day.pace.gathers());
    }

    #[test]
    fn a_worker_that_may_serve_nothing_sleeps_though_commands_wait() {
        let mut day = Day::of_a_slow_guest();
        assert!(!day.have_gathered(1, false));
        let until_sleep = day.until_sleep();
        assert!(until_sleep >= LONG && until_sleep < LONG + WATCH);
        assert!(!day.pace.gathers());
    }
}
