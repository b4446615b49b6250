//! Counts of things, on a command line and in output.

use std::fmt::Display;
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

/// Returns `count` with its `noun`, such as `1 check` and `2 checks`. The plural ends in -s.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{ending}")
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

    #[test]
    fn only_one_thing_has_no_plural() {
        let all = [0, 1, 2].map(|count: usize| counted(count, "DMA request"));
        assert_eq!(all, ["0 DMA requests", "1 DMA request", "2 DMA requests"]);
    }
}
