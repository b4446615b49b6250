//! The seed of a test with random input.

use std::env;
use std::hash::{BuildHasher, RandomState};

/// A test that fails with a seed fails again with it.
const VARIABLE: &str = "PEERBAR_TEST_SEED";
/// The seed of a test if the environment sets none.
const FIXED: u64 = 1;

/// Returns the seed in the environment variable `PEERBAR_TEST_SEED`, or otherwise a fixed one.
/// Prints it: a test that fails shows how to repeat it.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn seed() -> u64 {
    printed(from_environment().unwrap_or(FIXED))
}

/// Like [`seed`], but returns a new one if the environment sets none.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn new_seed() -> u64 {
    // A `RandomState` has random keys. A number of 32 bits is short enough to be copied by hand.
    let new = || RandomState::new().hash_one(VARIABLE) >> 32;
    printed(from_environment().unwrap_or_else(new))
}

fn printed(seed: u64) -> u64 {
    println!("{VARIABLE}={seed}");
    seed
}

fn from_environment() -> Option<u64> {
    let text = env::var(VARIABLE).ok()?;
    let seed = text.parse();
    Some(seed.unwrap_or_else(|_| panic!("{VARIABLE}={text}: expected a number")))
}
