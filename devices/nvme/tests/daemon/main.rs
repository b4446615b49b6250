//! The daemon as a process behind its socket: with a client that others have written, with one of hand-made bytes that
//! answers the daemon's requests for memory as it likes, and under command lines that cannot be.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that goes wrong shall panic, and its numbers are small"
)]

mod cmb_legacy;
mod command_line;
mod driver;
mod errant;
mod faults;
mod flight;
mod foreign;
mod hostile;
mod lifetime;
mod lingering;
mod pmr;
mod process;
mod requests;
mod resampling;
mod silent_file;
mod spdk;
mod upstream;
mod wire;

use std::time::{Duration, Instant};

/// No test waits longer than this for what does not come.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks again and again until there is an answer; `what` says what was waited for.
#[track_caller]
fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}
