//! Numbers in environment variables.

use std::env;

/// Returns the number in the environment variable `name`.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}
