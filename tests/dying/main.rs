//! Parts that die under load: a server, the switch or QEMU is killed or stopped at a random moment. `scripts/dying` runs it.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

mod load;
mod processes;
mod round;

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::round::{Machine, Round};

/// The number in the environment variable `name`.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
#[ignore = "boots a guest for each round; scripts/dying runs it"]
fn part_dies_under_load_flushed_data_and_others_stay() {
    let rounds = number("PEERBAR_DYING_ROUNDS").unwrap_or(20);
    let seed = number("PEERBAR_DYING_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs()
    });
    let mut failed = 0;
    for at in 0..rounds {
        let round = Round::of_seed(seed + at);
        match round.run() {
            Ok(done) => eprintln!("round {} of {rounds}: {round}: {done}", at + 1),
            Err(error) => {
                failed += 1;
                eprintln!("round {} of {rounds}: {round}: FAILED: {error:#}", at + 1);
                let seed = seed + at;
                eprintln!("to repeat it: PEERBAR_DYING_SEED={seed} scripts/dying 1");
            }
        }
    }
    // Each round begins with this check, on a machine that starts after the one before.
    let mut last = Machine::start(seed).unwrap();
    last.check().unwrap();
    last.end().unwrap();
    assert_eq!(failed, 0, "of {rounds} rounds");
}
