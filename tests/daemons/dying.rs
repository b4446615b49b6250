//! Parts that are killed, stopped or disconnected under load, at random moments.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use peerbar_rig::new_seed;

use crate::environment::number;
use crate::machine::{Action, Machine, Moment};
use crate::shared::Part;

/// The kinds of moments, and how many of a hundred are of each.
const KINDS: [(Part, Kind, u32); 11] = [
    (Part::Disk0, Kind::Kill, 12),
    (Part::Disk1, Kind::Kill, 12),
    (Part::Gpu0, Kind::Kill, 12),
    (Part::Switch0, Kind::Kill, 12),
    (Part::Disk0, Kind::Stop, 9),
    (Part::Disk1, Kind::Stop, 9),
    (Part::Gpu0, Kind::Stop, 9),
    (Part::Switch0, Kind::Stop, 10),
    (Part::Disk0, Kind::Leave, 5),
    (Part::Disk1, Kind::Leave, 5),
    (Part::Gpu0, Kind::Leave, 5),
];
/// The longest time from when all transfers work again to the next moment, in µs.
const BEFORE: u64 = 20_000;
/// Usual and long stops in ms. The long ones exceed the time-outs of the switch and its endpoints.
const SHORT: (u64, u64) = (1, 60);
const LONG: (u64, u64) = (1500, 6000);
/// One of this many stops is long.
const LONG_EVERY: u32 = 25;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kill,
    Stop,
    Leave,
}

/// Returns a random moment, and the time until it.
fn moment(random: &mut Rng) -> (Moment, Kind, Duration) {
    let before = Duration::from_micros(random.u64(0..BEFORE));
    let mut left = random.u32(0..100);
    let chosen = KINDS.iter().find(|(_, _, share)| {
        let is_it = left < *share;
        left = left.saturating_sub(*share);
        is_it
    });
    let (part, kind, _) = *chosen.unwrap();
    let (least, most) = if random.u32(0..LONG_EVERY) == 0 {
        LONG
    } else {
        SHORT
    };
    let action = match kind {
        Kind::Kill => Action::Kill,
        Kind::Stop => Action::Stop(Duration::from_millis(random.u64(least..=most))),
        Kind::Leave => Action::Leave,
    };
    (Moment { part, action }, kind, before)
}

#[test]
#[ignore = "kills parts for minutes; scripts/test --only dying-daemons runs it"]
fn parts_die_and_data_and_other_parts_stay() {
    let moments = number("PEERBAR_DYING_MOMENTS").unwrap_or(200);
    let seed = new_seed();
    let mut random = Rng::with_seed(seed);
    let mut machine = Machine::start(seed).unwrap();
    let mut done = BTreeMap::new();
    let begun = Instant::now();
    for number in 1..=moments {
        let (moment, kind, before) = moment(&mut random);
        thread::sleep(before);
        let injected = machine.inject(moment);
        injected.unwrap_or_else(|error| panic!("moment {number}, {moment}: {error:#}"));
        *done.entry((moment.part, kind)).or_insert(0) += 1;
    }
    let took = begun.elapsed();
    let passes = machine.passes();
    let flushed = machine.end().unwrap();
    println!(
        "{moments} moments in {took:.0?}: {done:?}; {passes} passes, {flushed} blocks flushed"
    );
}

#[test]
fn each_kind_of_moment_has_its_share() {
    assert_eq!(KINDS.iter().map(|(_, _, share)| share).sum::<u32>(), 100);
    let mut random = Rng::with_seed(1);
    let moments = (0..2000).map(|_| moment(&mut random));
    let kinds: BTreeMap<_, u32> = moments.fold(BTreeMap::new(), |mut kinds, (moment, kind, _)| {
        *kinds.entry((moment.part, kind)).or_default() += 1;
        kinds
    });
    assert_eq!(kinds.len(), KINDS.len());
    assert!(kinds.values().all(|count| *count > 50), "{kinds:?}");
}
