//! The daemon as a process behind its socket: with an independent client, with a client of
//! hand-made bytes that answers the daemon's requests for memory as a test chooses, and with
//! invalid command lines.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test panics if it fails, and its numbers are small"
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

/// Longest wait of any test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks repeatedly until there is an answer; `what` names the awaited event.
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
