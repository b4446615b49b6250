//! The guest's clock compared with the host's: a line through moments at which a reading of one
//! clock is known to be before or after one of the other.

/// The guest's clock is at most this much too fast or too slow, as a part of its time.
const FASTEST: f64 = 1e-3;
/// Halvings of that range until the rate is known well enough.
const STEPS: u32 = 60;

/// Limits of the host's clock at a moment of the guest's, both in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// The moment, by the guest's clock.
    pub(super) guest: u64,
    /// The host's clock was not before this then.
    pub(super) earliest: Option<u64>,
    /// And not after this.
    pub(super) latest: Option<u64>,
}

/// Conversion of the guest's times into the host's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GuestClock {
    /// A moment of both clocks.
    guest: u64,
    host: u64,
    /// Nanoseconds of the host for one of the guest, less 1.
    rate: f64,
    /// Host time less guest time at that moment beyond their difference.
    shift: f64,
    /// The error of a time, in nanoseconds, at most.
    pub(super) error: f64,
}

impl GuestClock {
    /// Returns the line that is farthest from all bounds, or `None` without a bound on each side.
    pub(super) fn of(bounds: &[Bound]) -> Option<Self> {
        let origin = bounds.first()?;
        let (guest, host) = (origin.guest, origin.earliest.or(origin.latest)?);
        let near = |at: u64, base: u64| at as i128 as f64 - base as i128 as f64;
        let lines: Vec<(f64, Option<f64>, Option<f64>)> = bounds
            .iter()
            .map(|bound| {
                let time = near(bound.guest, guest);
                let beyond = |at: u64| near(at, host) - time;
                (time, bound.earliest.map(beyond), bound.latest.map(beyond))
            })
            .collect();
        let limits = |rate: f64| {
            let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
            for (time, earliest, latest) in &lines {
                low = earliest.map_or(low, |at| low.max(at - rate * time));
                high = latest.map_or(high, |at| high.min(at - rate * time));
            }
            (low, high)
        };
        let slack = |rate: f64| {
            let (low, high) = limits(rate);
            high - low
        };
        // The slack is concave in the rate.
        let (mut from, mut to) = (-FASTEST, FASTEST);
        for _ in 0..STEPS {
            let (left, right) = (from + (to - from) / 3.0, to - (to - from) / 3.0);
            if slack(left) < slack(right) {
                from = left;
            } else {
                to = right;
            }
        }
        let rate = (from + to) / 2.0;
        let (low, high) = limits(rate);
        (low.is_finite() && high.is_finite()).then(|| Self {
            guest,
            host,
            rate,
            shift: (low + high) / 2.0,
            error: ((high - low) / 2.0).abs(),
        })
    }

    /// Returns the host's time at a moment of the guest's clock.
    pub(super) fn host(&self, guest: u64) -> u64 {
        let since = guest.abs_diff(self.guest) as f64;
        let since = if guest < self.guest { -since } else { since };
        let beyond = since + since * self.rate + self.shift;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates"
        )]
        let distance = beyond.abs() as u64;
        if beyond < 0.0 {
            self.host.saturating_sub(distance)
        } else {
            self.host.saturating_add(distance)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1 << 50;

    /// Returns the host's time at a moment of a guest whose clock is slower by this many parts of a
    /// million.
    fn host(guest: u64, slower: i64) -> u64 {
        let beyond = i64::try_from(guest).unwrap() / 1_000_000 * slower;
        (START + guest).checked_add_signed(beyond).unwrap()
    }

    /// Bounds of that guest, each with at least this many nanoseconds on a side.
    fn bounds(slower: i64, [before, after]: [u64; 2]) -> Vec<Bound> {
        let bound = |number: u64| {
            let guest = 5_000_000_000 + number * 10_000_000;
            let host = host(guest, slower);
            let earliest = host - before - number % 7 * 1000;
            let latest = host + after + number % 11 * 1000;
            Bound {
                guest,
                earliest: (number % 3 != 0).then_some(earliest),
                latest: (number % 3 != 1).then_some(latest),
            }
        };
        (1..400).map(bound).collect()
    }

    #[test]
    fn times_are_found_within_the_error_that_is_given() {
        for slower in [-300, 0, 7, 500] {
            let clock = GuestClock::of(&bounds(slower, [4000, 9000])).unwrap();
            assert!(clock.error < 7000.0, "{clock:?}");
            for guest in [5_000_000_000, 6_543_000_000, 9_000_000_000] {
                let off = clock.host(guest).abs_diff(host(guest, slower)) as f64;
                assert!(
                    off <= clock.error + 1.0,
                    "{slower} {guest}: {off} {clock:?}"
                );
            }
        }
    }

    #[test]
    fn clock_with_bounds_on_one_side_only_is_unknown() {
        let mut bounds = bounds(0, [0, 0]);
        bounds.iter_mut().for_each(|bound| bound.latest = None);
        assert_eq!(GuestClock::of(&bounds), None);
        assert_eq!(GuestClock::of(&[]), None);
    }

    #[test]
    fn impossible_times_stay_numbers() {
        let bound = |guest, host| Bound {
            guest,
            earliest: Some(host),
            latest: Some(host),
        };
        let clock = GuestClock::of(&[bound(0, u64::MAX), bound(u64::MAX, 0)]).unwrap();
        assert!(clock.error.is_finite() && clock.error > 1e18, "{clock:?}");
        assert!(clock.host(0) > 0);
    }
}
