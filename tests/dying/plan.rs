//! The random events of a boot: stops and deaths of one part after the other.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;

use crate::processes::QEMU;

/// The devices, by switch.
pub(crate) const DEVICES: [(&str, [&str; 4]); 2] = [
    ("switch0", ["disk0", "disk1", "disk2", "gpu0"]),
    ("switch1", ["disk3", "disk4", "disk5", "gpu1"]),
];
/// Stops before each death.
const STOPS: RangeInclusive<u32> = 5..=15;
/// The longest time between two moments, in ms.
const BETWEEN: u64 = 1500;
/// Usual and long stops in ms. The long ones exceed the driver's and the switch's time-outs.
const SHORT: (u64, u64) = (100, 1000);
const LONG: (u64, u64) = (2000, 6000);

/// An injected event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT after this time.
    Stop(Duration),
}

/// An event of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Time since the moment before.
    pub(crate) after: Duration,
    pub(crate) part: &'static str,
    pub(crate) action: Action,
}

/// The moments of a boot. QEMU dies last.
pub(crate) struct Plan(pub(crate) Vec<Moment>);

impl Plan {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let devices = DEVICES.iter().flat_map(|(_, devices)| devices);
        let mut alive: Vec<&str> = devices.copied().collect();
        random.shuffle(&mut alive);
        let survivors = random.usize(1..=3);
        let mut dying = alive.split_off(survivors);
        let switch = random.choice(DEVICES).map(|(switch, _)| switch);
        dying.extend(switch.filter(|_| random.bool()));
        let switches = DEVICES.iter().map(|(switch, _)| *switch);
        alive.extend(switches.filter(|switch| !dying.contains(switch)));
        let mut plan = Self(Vec::new());
        for at in 0..dying.len() {
            let [dies, others @ ..] = dying.get(at..).unwrap_or_default() else {
                break;
            };
            let living = alive.iter().chain(others).chain([dies]).copied();
            let living: Vec<_> = living.chain([QEMU]).collect();
            for _ in 0..random.u32(STOPS) {
                let part = random.choice(living.iter().copied()).unwrap_or(QEMU);
                let (least, most) = if random.u32(0..4) == 0 { LONG } else { SHORT };
                let time = Duration::from_millis(random.u64(least..=most));
                plan.add(&mut random, part, Action::Stop(time));
            }
            plan.add(&mut random, dies, Action::Kill);
        }
        plan.add(&mut random, QEMU, Action::Kill);
        plan
    }

    fn add(&mut self, random: &mut Rng, part: &'static str, action: Action) {
        self.0.push(Moment {
            after: Duration::from_millis(random.u64(0..BETWEEN)),
            part,
            action,
        });
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Kill => write!(f, "{} killed", self.part),
            Action::Stop(time) => write!(f, "{} stopped for {time:?}", self.part),
        }
    }
}

#[test]
fn each_part_dies_once_and_nothing_happens_to_it_then() {
    let all = DEVICES.iter().flat_map(|(_, devices)| devices).count();
    let mut switches = 0;
    for seed in 0..1000 {
        let Plan(moments) = Plan::of_seed(seed);
        let mut dead = std::collections::BTreeSet::new();
        for moment in &moments {
            assert!(!dead.contains(moment.part), "{seed}: {moment}");
            if moment.action == Action::Kill {
                dead.insert(moment.part);
            }
        }
        assert_eq!(moments.last().map(|last| last.part), Some(QEMU));
        let devices = DEVICES.iter().flat_map(|(_, devices)| devices);
        let left = devices.filter(|device| !dead.contains(*device)).count();
        assert!((1..=3).contains(&left), "{seed}: {left} of {all} are left");
        switches += dead
            .iter()
            .filter(|part| part.starts_with("switch"))
            .count();
    }
    assert!((300..700).contains(&switches), "{switches} switches die");
}
