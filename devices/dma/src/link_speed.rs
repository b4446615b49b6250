//! The latency and bandwidth of a link, and their notation: `2us`, `4GiB/s`.

use std::fmt::{self, Display};
use std::num::NonZeroU64;
use std::str::FromStr;

use thiserror::Error;

const LATENCY_UNITS: [(&str, u64); 3] = [("ms", 1_000_000), ("us", 1000), ("ns", 1)];
const BANDWIDTH_UNITS: [(&str, u64); 3] =
    [("GiB/s", 1 << 30), ("MiB/s", 1 << 20), ("KiB/s", 1 << 10)];

/// The latency and bandwidth of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSpeed {
    /// Time from one end to the other.
    pub latency: Latency,
    /// Bandwidth in each direction; `None` if unlimited.
    pub bandwidth: Option<Bandwidth>,
}

impl LinkSpeed {
    /// Returns `true` if transfers take any time.
    pub fn takes_time(self) -> bool {
        self != Self::default()
    }
}

/// The time from one end of a link to the other, at most 100 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency(u64);

impl Latency {
    const MAX: u64 = 100_000_000;

    /// Makes a latency of this many nanoseconds, limited to the longest possible.
    pub fn of_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds.min(Self::MAX))
    }

    /// Returns the latency in nanoseconds.
    pub fn nanoseconds(self) -> u64 {
        self.0
    }
}

/// A link's bandwidth in each direction, at least 1 MiB/s: drivers give up on slower links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth(NonZeroU64);

impl Bandwidth {
    const MIN: NonZeroU64 = NonZeroU64::MIN.saturating_add((1 << 20) - 1);

    /// Makes a bandwidth in bytes per second, at least the smallest possible. Returns `None` for 0,
    /// which means no limit.
    pub fn of_bytes_per_second(bytes: u64) -> Option<Self> {
        NonZeroU64::new(bytes).map(|bytes| Self(bytes.max(Self::MIN)))
    }

    /// Returns the bandwidth in bytes per second.
    pub fn bytes_per_second(self) -> NonZeroU64 {
        self.0
    }
}

/// An invalid latency. The message continues after the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be a latency up to 100ms, such as 2us or 500ns")]
pub struct UnknownLatency;

/// An invalid bandwidth. The message continues after the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be a bandwidth from 1MiB/s on, such as 4GiB/s")]
pub struct UnknownBandwidth;

impl FromStr for Latency {
    type Err = UnknownLatency;

    fn from_str(text: &str) -> Result<Self, UnknownLatency> {
        let nanoseconds = quantity(text, &LATENCY_UNITS).filter(|n| *n <= Self::MAX);
        nanoseconds.map(Self).ok_or(UnknownLatency)
    }
}

impl FromStr for Bandwidth {
    type Err = UnknownBandwidth;

    fn from_str(text: &str) -> Result<Self, UnknownBandwidth> {
        let bytes = quantity(text, &BANDWIDTH_UNITS).and_then(NonZeroU64::new);
        let bytes = bytes.filter(|bytes| *bytes >= Self::MIN);
        bytes.map(Self).ok_or(UnknownBandwidth)
    }
}

impl Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in_units(f, self.0, &LATENCY_UNITS)
    }
}

impl Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in_units(f, self.0.get(), &BANDWIDTH_UNITS)
    }
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let read = |(unit, factor): &(&str, u64)| {
        let digits = text.strip_suffix(unit)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits
            .parse::<u64>()
            .ok()
            .filter(|_| plain)?
            .checked_mul(*factor)
    };
    units.iter().find_map(read)
}

/// Writes a value in the largest unit that divides it. The last unit divides every value that was
/// parsed.
fn write_in_units(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value % *factor == 0;
    match units.iter().find(fits).or(units.last()) {
        Some((unit, factor)) => write!(f, "{}{unit}", value / factor),
        None => write!(f, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_read_as_it_is_written() {
        for (text, nanoseconds) in [("500ns", 500), ("2us", 2000), ("100ms", 100_000_000)] {
            let latency: Latency = text.parse().unwrap();
            assert_eq!(
                (latency.nanoseconds(), latency.to_string().as_str()),
                (nanoseconds, text)
            );
        }
        for wrong in ["", "2", "us", "-1us", "+1us", "101ms", "1s", "1.5us"] {
            assert_eq!(wrong.parse::<Latency>(), Err(UnknownLatency), "{wrong}");
        }
    }

    #[test]
    fn a_bandwidth_is_read_as_it_is_written() {
        for (text, bytes) in [
            ("4GiB/s", 4 << 30),
            ("1MiB/s", 1 << 20),
            ("1025KiB/s", 1025 << 10),
        ] {
            let bandwidth: Bandwidth = text.parse().unwrap();
            assert_eq!(bandwidth.bytes_per_second().get(), bytes);
            assert_eq!(bandwidth.to_string(), text);
        }
        for wrong in ["", "4", "0GiB/s", "4G", "1023KiB/s", "99999999999GiB/s"] {
            assert_eq!(wrong.parse::<Bandwidth>(), Err(UnknownBandwidth), "{wrong}");
        }
    }

    #[test]
    fn what_a_peer_says_is_brought_into_bounds() {
        assert_eq!(Latency::of_nanoseconds(u64::MAX).to_string(), "100ms");
        assert_eq!(Bandwidth::of_bytes_per_second(0), None);
        let slow = Bandwidth::of_bytes_per_second(1).unwrap();
        assert_eq!(slow.to_string(), "1MiB/s");
    }
}
