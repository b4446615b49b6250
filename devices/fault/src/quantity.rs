//! Numbers, ranges and times in a rule's text.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

const UNITS: [(&str, u64); 3] = [("us", 1), ("ms", 1000), ("s", 1_000_000)];

/// Parses a number, decimal or hexadecimal with 0x.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, radix).ok().filter(|_| plain)
}

/// Parses a number from 1 on.
pub(crate) fn positive(text: &str) -> Option<NonZeroU64> {
    number(text).and_then(NonZeroU64::new)
}

/// Parses `A..B`, without B and not empty, or one number.
pub(crate) fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = match text.split_once("..") {
        Some((start, end)) => (number(start)?, number(end)?),
        None => (number(text)?, number(text)?.checked_add(1)?),
    };
    (start < end).then_some(start..end)
}

/// Parses `A/B`, with A not more than B and neither 0.
pub(crate) fn fraction(text: &str) -> Option<(NonZeroU64, NonZeroU64)> {
    let (of, among) = text.split_once('/')?;
    let (of, among) = (positive(of)?, positive(among)?);
    (of <= among).then_some((of, among))
}

/// Parses a time from 1us on.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits)?;
    let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit)?;
    let micros = positive(digits)?.get().checked_mul(*factor)?;
    Some(Duration::from_micros(micros))
}

/// Returns a time as text, in the largest unit that divides it.
pub(crate) fn time_text(time: Duration) -> String {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut units = UNITS.iter().rev();
    match units.find(|(_, factor)| micros % *factor == 0) {
        Some((unit, factor)) => format!("{}{unit}", micros / factor),
        None => format!("{micros}us"),
    }
}
