//! Numbers in environment variables.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number in the environment variable `name`.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The seed in `PEERBAR_DYING_SEED`, else one of this moment.
pub(crate) fn seed() -> u64 {
    number("PEERBAR_DYING_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    })
}
