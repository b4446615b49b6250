//! The daemons without a guest: parts are killed, stopped and left at thousands of random moments, or work for long. `scripts/dying`
//! and `scripts/soak` run it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that goes wrong shall panic"
)]

mod blocks;
mod client;
mod disk;
mod dying;
mod gpu;
mod machine;
mod memory;
mod server;
mod shared;
mod soak;

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number in the environment variable `name`.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The seed in the environment variable `name`, else one of this moment.
fn seed(name: &str) -> u64 {
    number(name).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs()
    })
}
