//! A range of bus addresses.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::window::BarWindow;

/// A range of bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusRange {
    first: u64,
    last: u64,
}

/// The text is not a range of bus addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be FIRST-LAST, two hexadecimal addresses in ascending order")]
pub struct NoBusRange;

impl BusRange {
    /// Returns the range from `first` to `last`, or `None` if `last` is less than `first`.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns `true` if all of a window lies in the range.
    pub(crate) fn holds(&self, window: &BarWindow) -> bool {
        let ends = window.last().is_some_and(|last| last <= self.last);
        ends && self.first <= window.address
    }
}

impl fmt::Display for BusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.first, self.last)
    }
}

impl FromStr for BusRange {
    type Err = NoBusRange;

    fn from_str(text: &str) -> Result<Self, NoBusRange> {
        let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let (first, last) = text.split_once('-').ok_or(NoBusRange)?;
        let ends = address(first).zip(address(last));
        let range = ends.and_then(|(first, last)| Self::new(first, last));
        range.ok_or(NoBusRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::BarBacking;

    #[test]
    fn range_is_parsed_as_it_is_displayed() {
        let range = BusRange::new(0x8000_0000, 0xfebf_ffff).unwrap();
        assert_eq!(range.to_string(), "0x80000000-0xfebfffff");
        assert_eq!(range.to_string().parse(), Ok(range));
        for wrong in [
            "",
            "0x1000",
            "0x2-0x1",
            "1-2",
            "0x1-",
            "0x1-0x1ffffffffffffffff",
        ] {
            assert_eq!(wrong.parse::<BusRange>(), Err(NoBusRange), "{wrong}");
        }
    }

    #[test]
    fn only_a_window_that_lies_in_a_range_as_a_whole_is_held() {
        let range = BusRange::new(0x2000, 0x4fff).unwrap();
        let held = |address, size| {
            range.holds(&BarWindow {
                bar: 0,
                address,
                size,
                claim: 0,
                backing: BarBacking::ByMessage,
            })
        };
        assert!(held(0x2000, 0x3000) && held(0x4fff, 1));
        assert!(!held(0x1fff, 0x10) && !held(0x4000, 0x1001) && !held(0x2000, u64::MAX));
    }
}
