//! Counts of things that are done, on a command line.

use std::str::FromStr;

/// Reads a count for clap: a [`NonZero`](std::num::NonZero) number, or another type `T` without
/// zero.
///
/// # Errors
/// The text is no whole number from 1 to the largest that `T` holds.
pub fn count<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse()
        .map_err(|_| "expected a whole number from 1 on")
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;

    #[test]
    fn count_is_a_number_from_one() {
        assert_eq!(count("3"), Ok(NonZero::<u32>::MIN.saturating_add(2)));
        for text in ["0", "-1", "x", "", "4294967296"] {
            assert_eq!(
                count::<NonZero<u32>>(text),
                Err("expected a whole number from 1 on")
            );
        }
    }
}
