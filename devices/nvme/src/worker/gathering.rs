//! Commands that wait for others, to be served together.
//!
//! The worker naps until as many are likely to have come as it aims at, and looks how many there are. It aims at one more each
//! time, until no more come although the guest has taken all completions: then the guest has stood still, and the worker aims
//! at half as many. So the guest always has something to do beside what waits here, is interrupted as seldom as that
//! permits, and shares its processors with few naps, each of which costs the same however long it is.
//!
//! A fast guest has submitted all that it will by the end of a short nap. So naps are short at first, now and then, and after
//! the guest has stood still, until it has been seen which it is: how much has come by the end of a long nap tells nothing.

use std::time::{Duration, Instant};

/// A guest that has a command served more often than this has no time for naps.
pub(super) const SLOW: Duration = Duration::from_micros(5);

/// A guest that takes longer than this for a command counts as one that takes so long.
const SLOWEST: Duration = Duration::from_micros(50);

/// The shortest nap: several times what it takes to fall asleep and to wake up.
pub(super) const NAP: Duration = Duration::from_micros(25);

/// The longest one.
const LONGEST: Duration = Duration::from_micros(400);

/// How long commands wait for others at most, once they have been seen.
const WAIT: Duration = Duration::from_micros(400);

/// How many looks in a row at a guest that could submit more, and does not, tell that it stands still.
const IN_VAIN: u32 = 2;

/// How many commands are aimed at, at least and at most. The most are fetched at once.
const AIM: [u32; 2] = [2, 32];

/// A guest that stands still with fewer commands has too few for this.
const WORTH: u32 = 4;

/// A guest that submits so many during one short nap is too fast for this.
const MANY: u32 = 8;

/// How often either happens before it is given up.
const PATIENCE: u32 = 4;

/// After commands have been served so often it is tried again whether the guest is slow.
const AGAIN: u32 = 16;

/// A guest that has been slow so often when that was tried is likely to be so again.
const OFTEN: u32 = 3;

/// What is to be done with the commands that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Others may follow.
    Wait,
    /// They are served now.
    Serve,
    /// They are served now, and it is not worth the waiting.
    GiveUp,
}

/// How many commands are waited for, and how many have come.
#[derive(Debug)]
pub(super) struct Gathering {
    round: Round,
    aim: u32,
    /// When the last were served.
    served: Instant,
    /// How long the guest takes for a command, usually.
    each: Duration,
    /// Whether the guest's speed is to be seen.
    tries: bool,
    /// How often it was too fast, or had too few, since it last was as wanted.
    failures: u32,
    /// How often it was as wanted.
    successes: u32,
    /// How often commands have been served since then.
    turns: u32,
}

/// What has come since the last commands were served.
#[derive(Debug, Default)]
struct Round {
    /// How many there were at the last look.
    waiting: u32,
    /// When the first of them was seen.
    since: Option<Instant>,
    /// At how many looks there were more.
    growths: u32,
    /// How many looks in a row nothing has come from a guest with nothing else to do.
    in_vain: u32,
}

impl Gathering {
    /// Begins with a guest that takes so long for a command.
    pub(super) fn new(now: Instant, each: Duration) -> Self {
        let [aim, _] = AIM;
        Self {
            round: Round::default(),
            aim,
            served: now,
            each: each.min(SLOWEST),
            tries: true,
            failures: 0,
            successes: 0,
            turns: 0,
        }
    }

    /// Whether it has been worth the waiting.
    pub(super) fn was_worth(&self) -> bool {
        self.successes >= OFTEN
    }

    /// Whether any waited at the last look.
    pub(super) fn has_some(&self) -> bool {
        self.round.waiting > 0
    }

    /// When it is worth looking again. It is early rather than late, as a nap takes longer than it should.
    pub(super) fn until(&self, now: Instant) -> Instant {
        let tries = self.tries && self.round.growths < 2;
        if tries || self.round.in_vain > 0 {
            return now + NAP;
        }
        let missing = self.aim.saturating_sub(self.round.waiting);
        let nap = (self.each * missing).saturating_sub(NAP);
        now + nap.clamp(NAP, LONGEST)
    }

    /// So many commands wait at this look, in the queue that has most; `at_leisure`: the guest has taken all completions that
    /// there are.
    pub(super) fn look(&mut self, waiting: u32, at_leisure: bool, now: Instant) -> Verdict {
        if waiting == 0 {
            return Verdict::Wait;
        }
        let waited = self.round.look(waiting, at_leisure, now);
        let verdict = if waiting >= self.aim {
            self.come()
        } else if self.round.in_vain >= IN_VAIN {
            self.stand_still()
        } else if waited >= WAIT {
            Verdict::Serve
        } else {
            return Verdict::Wait;
        };
        self.learn(now);
        self.round = Round::default();
        self.turns = self.turns.saturating_add(1);
        self.tries |= self.turns >= AGAIN;
        verdict
    }

    /// As many have come as were aimed at.
    fn come(&mut self) -> Verdict {
        let [_, most] = AIM;
        self.aim = (self.aim + 1).min(most);
        self.judge(self.round.waiting >= MANY)
    }

    /// The guest has waited for us.
    fn stand_still(&mut self) -> Verdict {
        let [least, _] = AIM;
        self.aim = (self.round.waiting / 2).max(least);
        let verdict = self.judge(true);
        self.tries = true;
        verdict
    }

    /// Whether it goes on, if the guest's speed was to be seen. `all`: these were all that it has, or as many as a fast one has.
    fn judge(&mut self, all: bool) -> Verdict {
        if self.tries && self.round.growths > 1 && self.round.waiting >= WORTH {
            (self.failures, self.turns, self.tries) = (0, 0, false);
            self.successes = self.successes.saturating_add(1);
        } else if self.tries && all {
            self.failures += 1;
        }
        if self.failures > PATIENCE {
            Verdict::GiveUp
        } else {
            Verdict::Serve
        }
    }

    /// They are served now: how long the guest took for each, unless it has stood still.
    fn learn(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.served) / self.round.waiting.max(1);
        self.served = now;
        if self.round.in_vain == 0 {
            self.tries |= took < SLOW;
            self.each = (self.each * 3 + took.min(SLOWEST)) / 4;
        }
    }
}

impl Round {
    /// How long the first of them has waited.
    fn look(&mut self, waiting: u32, at_leisure: bool, now: Instant) -> Duration {
        let grows = waiting > std::mem::replace(&mut self.waiting, waiting);
        self.growths += u32::from(grows);
        self.in_vain = if at_leisure && !grows {
            self.in_vain + 1
        } else {
            0
        };
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came of a guest's commands.
    struct Told {
        /// How many were served each time.
        served: Vec<u32>,
        naps: u32,
        given_up: bool,
    }

    /// A guest, and a worker whose naps are 20 microseconds too long.
    struct Scene {
        gathering: Gathering,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                gathering: Gathering::new(now, SLOW),
                now,
            }
        }

        /// The guest has so many commands and takes `each` for one, as long as it has some left, for so many naps or until it
        /// is given up.
        fn go_on(&mut self, depth: u32, each: Duration, naps: u32) -> Told {
            let mut told = Told {
                served: Vec::new(),
                naps: 0,
                given_up: false,
            };
            // When the guest has submitted all commands that it has not submitted yet.
            let mut done = self.now + each * depth;
            while told.naps < naps && !told.given_up {
                let left = done.saturating_duration_since(self.now).as_nanos();
                let left = u32::try_from(left.div_ceil(each.as_nanos())).unwrap();
                let waiting = depth - left.min(depth);
                let verdict = self.gathering.look(waiting, true, self.now);
                if verdict != Verdict::Wait {
                    told.served.push(waiting);
                    done = done.max(self.now) + each * waiting;
                }
                told.given_up = verdict == Verdict::GiveUp;
                self.now = self.gathering.until(self.now) + Duration::from_micros(20);
                told.naps += 1;
            }
            told
        }
    }

    fn guest_with(depth: u32, each: Duration, naps: u32) -> Told {
        Scene::new().go_on(depth, each, naps)
    }

    const EACH: Duration = Duration::from_micros(12);

    #[test]
    fn a_guest_that_goes_on_is_served_more_and_more_at_a_time_with_few_naps() {
        let Told {
            served,
            naps,
            given_up,
        } = guest_with(64, EACH, 400);
        assert!(!given_up);
        let [_, most] = AIM;
        assert!(served.iter().rev().take(100).all(|count| *count >= most));
        let turns = u32::try_from(served.len()).unwrap();
        assert!(naps < turns * 2, "{naps} naps for {turns} turns");
    }

    #[test]
    fn a_guest_that_has_all_at_once_is_given_up_soon() {
        for depth in 2..200 {
            let told = guest_with(depth, Duration::from_nanos(200), 400);
            assert!(told.given_up, "{depth}: {:?}", told.served);
            assert!(told.naps < 100, "{depth}: {}", told.naps);
        }
    }

    #[test]
    fn a_guest_that_becomes_fast_is_given_up_soon() {
        for depth in 2..200 {
            let mut scene = Scene::new();
            assert!(!scene.go_on(64, EACH, 200).given_up);
            let told = scene.go_on(depth, Duration::from_nanos(200), 400);
            assert!(told.given_up, "{depth}: {:?}", told.served);
            assert!(told.naps < 100, "{depth}: {}", told.naps);
        }
    }

    #[test]
    fn half_as_many_are_aimed_at_when_the_guest_stands_still() {
        let told = guest_with(16, EACH, 400);
        assert!(!told.given_up);
        let after = told.served.windows(2).filter(|two| two[0] == 16);
        let (least, most) = (AIM[0], AIM[1]);
        assert!(
            told.served
                .iter()
                .all(|count| (least..most).contains(count))
        );
        assert!(after.clone().any(|two| two[1] < 12), "{:?}", told.served);
    }

    #[test]
    fn a_guest_with_few_commands_is_given_up() {
        for depth in 2..WORTH {
            let told = guest_with(depth, EACH, 400);
            assert!(told.given_up, "{depth}: {:?}", told.served);
        }
    }

    #[test]
    fn a_guest_that_takes_completions_does_not_stand_still_but_does_not_wait_for_ever() {
        let mut now = Instant::now();
        let mut gathering = Gathering::new(now, EACH);
        let start = now;
        while gathering.look(1, false, now) == Verdict::Wait {
            now += Duration::from_micros(10);
        }
        assert_eq!(now - start, WAIT);
    }

    #[test]
    fn nothing_is_served_if_nothing_waits() {
        let mut now = Instant::now();
        let mut gathering = Gathering::new(now, EACH);
        for _ in 0..100 {
            now = gathering.until(now);
            assert_eq!(gathering.look(0, true, now), Verdict::Wait);
            assert!(!gathering.has_some());
        }
        assert_eq!(gathering.look(1, true, now), Verdict::Wait);
        assert!(gathering.has_some());
    }
}
