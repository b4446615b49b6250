//! The jobs of the commands: filling disks, measuring, and checking data.

use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::drive::Job;
use crate::loaded_queue::{Direction, Slot};
use crate::spread::latencies;

/// The size of the disk, as a number of transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
    /// Transfers that fit on the disk.
    pub(crate) transfers: u64,
}

impl Extent {
    /// Returns the offset of transfer `number`, or `None` if it is beyond the disk.
    pub(crate) fn transfer(&self, number: u64) -> Option<u64> {
        (number < self.transfers).then(|| number * self.bytes)
    }

    /// Returns the offset of a random transfer.
    pub(crate) fn random(&self, rng: &mut Rng) -> Option<u64> {
        self.transfer(rng.u64(..self.transfers))
    }
}

/// Returns the data that [`Fill`] writes at this offset: no two words of the disk are the same.
pub(crate) fn data(offset: u64, bytes: usize) -> impl Iterator<Item = u64> {
    let words = (0..).step_by(8).take(bytes / 8);
    words.map(move |inside: u64| 1 << 48 ^ (offset + inside))
}

/// Writes data to the whole disk, different at every address.
pub(crate) struct Fill {
    pub(crate) extent: Extent,
    /// Number of submitted transfers.
    pub(crate) begun: u64,
}

impl Job for Fill {
    fn direction(&self) -> Direction {
        Direction::Write
    }

    fn next(&mut self, _now: Instant, slot: &mut Slot) -> anyhow::Result<Option<u64>> {
        let Some(offset) = self.extent.transfer(self.begun) else {
            return Ok(None);
        };
        self.begun += 1;
        let data: Vec<u64> = data(offset, slot.buffer.bytes).collect();
        slot.buffer.data()?.copy_from(&data);
        Ok(Some(offset))
    }

    fn done(&mut self, _now: Instant, _slot: &Slot) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Reads at random addresses and compares the data with that of [`Fill`].
pub(crate) struct Check {
    pub(crate) extent: Extent,
    pub(crate) rng: Rng,
    /// Number of remaining reads.
    pub(crate) left: u64,
}

impl Job for Check {
    fn direction(&self) -> Direction {
        Direction::Read
    }

    fn next(&mut self, _now: Instant, slot: &mut Slot) -> anyhow::Result<Option<u64>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        // A read that does nothing must not find the data of an earlier one.
        slot.buffer.overwrite()?;
        Ok(self.extent.random(&mut self.rng))
    }

    fn done(&mut self, _now: Instant, slot: &Slot) -> anyhow::Result<()> {
        slot.buffer.compare(slot.offset)
    }
}

/// A period that begins with the first transfer, however late that is.
pub(crate) struct Period {
    begun: Option<Instant>,
    time: Duration,
}

impl Period {
    pub(crate) fn new(time: Duration) -> Self {
        Self { begun: None, time }
    }

    /// Returns `true` if there may be another transfer.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return true;
        };
        now < begun + self.time
    }
}

/// Transfers at random addresses for a time, and records the latency of each.
pub(crate) struct Timed {
    pub(crate) direction: Direction,
    pub(crate) extent: Extent,
    pub(crate) rng: Rng,
    period: Period,
    last: Option<Instant>,
    /// Latencies in nanoseconds, one for each completed transfer.
    pub(crate) latencies: Histogram<u64>,
}

impl Timed {
    /// Submits for `time`.
    pub(crate) fn new(direction: Direction, extent: Extent, rng: Rng, time: Duration) -> Self {
        Self {
            direction,
            extent,
            rng,
            period: Period::new(time),
            last: None,
            latencies: latencies(),
        }
    }

    /// Returns the transfers a second, from the first submission to the last completion.
    pub(crate) fn rate(&self) -> f64 {
        let time = self.period.begun.zip(self.last);
        let time = time.map_or(Duration::ZERO, |(begun, last)| last - begun);
        count(&self.latencies) / time.as_secs_f64()
    }
}

/// Returns the number of values.
pub(crate) fn count(histogram: &Histogram<u64>) -> f64 {
    exact(histogram.len())
}

/// Returns the same number, if it is below 2^53.
pub(crate) fn exact(number: u64) -> f64 {
    Duration::from_secs(number).as_secs_f64()
}

impl Job for Timed {
    fn direction(&self) -> Direction {
        self.direction
    }

    fn next(&mut self, now: Instant, _slot: &mut Slot) -> anyhow::Result<Option<u64>> {
        if !self.period.goes_on(now) {
            return Ok(None);
        }
        Ok(self.extent.random(&mut self.rng))
    }

    fn done(&mut self, now: Instant, slot: &Slot) -> anyhow::Result<()> {
        self.last = Some(now);
        if let Some(since) = slot.since {
            let nanoseconds = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            self.latencies.saturating_record(nanoseconds);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent {
        bytes: 4096,
        transfers: 3,
    };

    #[test]
    fn transfers_go_through_the_disk() {
        let offsets = [Some(0), Some(4096), Some(8192), None];
        assert_eq!([0, 1, 2, 3].map(|number| EXTENT.transfer(number)), offsets);
        let mut rng = Rng::with_seed(1);
        assert!((0..100).all(|_| EXTENT.random(&mut rng).is_some()));
    }

    #[test]
    fn a_period_has_room_for_one_transfer_at_least() {
        let (mut period, now) = (Period::new(Duration::from_secs(2)), Instant::now());
        let seconds = [5, 6, 7].map(|after| now + Duration::from_secs(after));
        assert_eq!(
            seconds.map(|now| period.goes_on(now)),
            [true, true, false],
            "it begins with the first"
        );
        assert!(Period::new(Duration::ZERO).goes_on(now));
    }

    #[test]
    fn no_two_words_are_the_same() {
        let words = (0..3).flat_map(|number| data(EXTENT.transfer(number).unwrap(), 4096));
        let words: Vec<u64> = words.collect();
        let different: std::collections::HashSet<&u64> = words.iter().collect();
        assert_eq!(different.len(), words.len());
        assert!(!words.contains(&u64::MAX));
    }
}
