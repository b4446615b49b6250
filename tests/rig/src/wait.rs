//! Waiting for an event that has no descriptor.

use std::time::Instant;

use crate::TIME_OUT;

/// Asks repeatedly until there is an answer, or returns `None` after 20 s.
pub fn poll_until<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < TIME_OUT {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        std::thread::yield_now();
    }
    None
}

/// Asks repeatedly until there is an answer; `what` names the awaited event.
#[track_caller]
pub fn wait_until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    let answer = poll_until(ask);
    answer.unwrap_or_else(|| panic!("{what}: not within {TIME_OUT:?}"))
}

/// Returns bytes that identify their own position.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i / 251) as u8 ^ seed)
        .collect()
}
