//! Commands that wait for others, to be served together.
//!
//! The worker naps meanwhile, and looks how many there are. It serves them when there are as many as it aims at, which is one
//! more each time, or when no more come although the guest has taken all completions: then the guest has stood still,
//! and the worker aims at half as many. So the guest always has something to do beside what waits here, and is
//! interrupted as seldom as that permits.

use std::time::Duration;

/// How long a nap is: several times what it takes to fall asleep and to wake up.
pub(super) const NAP: Duration = Duration::from_micros(25);

/// How many looks a command waits for others at most.
const LOOKS: u32 = 8;

/// How many looks at a guest that could submit more, and does not, tell that it stands still.
const IN_VAIN: u32 = 3;

/// How many commands are aimed at, at least and at most. The most are fetched at once.
const AIM: [u32; 2] = [2, 32];

/// A guest that stands still with fewer commands has too few for this.
const WORTH: u32 = 4;

/// A guest that submits so many during one nap is too fast for this.
const MANY: u32 = 8;

/// How often either happens before it is given up.
const PATIENCE: u32 = 4;

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
    /// How many there were at the last look, and how often they have been looked at.
    waiting: u32,
    looks: u32,
    /// At how many of them there were more.
    growths: u32,
    /// How many looks in a row nothing has come from a guest with nothing else to do.
    in_vain: u32,
    aim: u32,
    /// How often the guest has stood still with too few commands, or had them all at once, since it last had enough.
    too_few: u32,
    /// Whether it ever had enough.
    pub(super) was_worth: bool,
}

impl Gathering {
    pub(super) fn new() -> Self {
        let [aim, _] = AIM;
        Self {
            waiting: 0,
            looks: 0,
            growths: 0,
            in_vain: 0,
            aim,
            too_few: 0,
            was_worth: false,
        }
    }

    /// So many commands wait at this look; `at_leisure`: the guest has taken all completions that there are.
    pub(super) fn look(&mut self, waiting: u32, at_leisure: bool) -> Verdict {
        if waiting == 0 {
            return Verdict::Wait;
        }
        let grows = waiting > std::mem::replace(&mut self.waiting, waiting);
        self.looks += 1;
        self.growths += u32::from(grows);
        self.in_vain = if at_leisure && !grows {
            self.in_vain + 1
        } else {
            0
        };
        let verdict = if waiting >= self.aim {
            self.come()
        } else if self.in_vain >= IN_VAIN {
            self.stand_still(waiting)
        } else if self.looks >= LOOKS {
            Verdict::Serve
        } else {
            return Verdict::Wait;
        };
        (self.waiting, self.looks, self.growths, self.in_vain) = (0, 0, 0, 0);
        verdict
    }

    /// As many have come as were aimed at.
    fn come(&mut self) -> Verdict {
        let [_, most] = AIM;
        let reached = self.aim;
        self.aim = (reached + 1).min(most);
        if self.growths > 1 && reached >= WORTH {
            self.too_few = 0;
            self.was_worth = true;
        } else if reached >= MANY {
            self.too_few += 1;
        }
        self.verdict()
    }

    /// The guest has waited with so many commands.
    fn stand_still(&mut self, waiting: u32) -> Verdict {
        let [least, _] = AIM;
        self.aim = (waiting / 2).max(least);
        if waiting < WORTH || self.growths < 2 {
            self.too_few += 1;
        }
        self.verdict()
    }

    fn verdict(&self) -> Verdict {
        if self.too_few > PATIENCE {
            Verdict::GiveUp
        } else {
            Verdict::Serve
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest with so many commands that submits `speed` for each look, as long as it has some left; how many were served each
    /// time, until so many looks are over or it is given up.
    fn guest_with(depth: u32, speed: u32, looks: u32) -> (Vec<u32>, bool) {
        let (mut gathering, mut served, mut waiting) = (Gathering::new(), Vec::new(), 0);
        for _ in 0..looks {
            waiting = (waiting + speed).min(depth);
            let verdict = gathering.look(waiting, true);
            if verdict != Verdict::Wait {
                served.push(std::mem::take(&mut waiting));
            }
            if verdict == Verdict::GiveUp {
                return (served, true);
            }
        }
        (served, false)
    }

    #[test]
    fn a_guest_that_goes_on_is_served_more_and_more_at_a_time() {
        let (served, given_up) = guest_with(64, 1, 200);
        assert!(!given_up);
        assert_eq!(served[..4], [2, 3, 4, 5]);
        assert_eq!(served.last(), Some(&LOOKS), "as many as come in time");
    }

    #[test]
    fn a_guest_that_has_many_at_once_is_given_up() {
        for depth in [4, 8, 16, 64] {
            let (served, given_up) = guest_with(depth, depth, 400);
            assert!(given_up, "{depth}: {served:?}");
        }
    }

    #[test]
    fn half_as_many_are_aimed_at_when_the_guest_stands_still() {
        let (served, given_up) = guest_with(6, 2, 200);
        assert!(!given_up);
        // The sixth time is in vain: seven were aimed at.
        assert_eq!(served[..7], [2, 4, 4, 6, 6, 6, 4]);
    }

    #[test]
    fn a_guest_with_few_commands_is_given_up() {
        let (served, given_up) = guest_with(2, 1, 200);
        assert!(given_up);
        assert!(served.iter().all(|count| *count == 2));
    }

    #[test]
    fn a_guest_that_takes_completions_does_not_stand_still() {
        let mut gathering = Gathering::new();
        for _ in 1..LOOKS {
            assert_eq!(gathering.look(1, false), Verdict::Wait);
        }
        assert_eq!(gathering.look(1, false), Verdict::Serve, "but not for ever");
    }

    #[test]
    fn nothing_is_served_if_nothing_waits() {
        let mut gathering = Gathering::new();
        for _ in 0..100 {
            assert_eq!(gathering.look(0, true), Verdict::Wait);
        }
        assert_eq!(gathering.look(1, true), Verdict::Wait);
    }
}
