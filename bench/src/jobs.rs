//! What is done with the commands: filling disks, measuring, and checking what comes back.

use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::drive::Job;
use crate::loaded_queue::{Direction, DiskAddress, Slot};
use crate::spread::latencies;

/// The disks: namespaces 1 to `namespaces`, of `transfers` transfers each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) namespaces: u32,
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
    /// Transfers that fit a namespace.
    pub(crate) transfers: u64,
}

impl Extent {
    /// Transfer `number` of all, counted through the namespaces.
    pub(crate) fn transfer(&self, number: u64) -> Option<DiskAddress> {
        let namespace = u32::try_from(number / self.transfers).ok()?;
        (namespace < self.namespaces).then(|| DiskAddress {
            nsid: namespace + 1,
            offset: number % self.transfers * self.bytes,
        })
    }

    fn all(&self) -> u64 {
        u64::from(self.namespaces) * self.transfers
    }

    /// A transfer chosen at random.
    pub(crate) fn random(&self, rng: &mut Rng) -> Option<DiskAddress> {
        self.transfer(rng.u64(..self.all()))
    }
}

/// The data that [`Fill`] writes at `address`: no two words of all disks are the same.
pub(crate) fn data(address: DiskAddress, bytes: usize) -> impl Iterator<Item = u64> {
    let words = (0..).step_by(8).take(bytes / 8);
    words.map(move |inside: u64| u64::from(address.nsid) << 48 ^ (address.offset + inside))
}

/// Writes to every address data that are found nowhere else.
pub(crate) struct Fill {
    pub(crate) extent: Extent,
    /// How many transfers were submitted.
    pub(crate) begun: u64,
}

impl Job for Fill {
    fn direction(&self) -> Direction {
        Direction::Write
    }

    fn next(&mut self, _now: Instant, slot: &mut Slot) -> anyhow::Result<Option<DiskAddress>> {
        let Some(address) = self.extent.transfer(self.begun) else {
            return Ok(None);
        };
        self.begun += 1;
        let data: Vec<u64> = data(address, slot.buffer.bytes).collect();
        slot.buffer.data()?.copy_from(&data);
        Ok(Some(address))
    }

    fn done(&mut self, _now: Instant, _slot: &Slot) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Reads at random addresses and compares what comes with what [`Fill`] has written.
pub(crate) struct Check {
    pub(crate) extent: Extent,
    pub(crate) rng: Rng,
    /// How many reads are still to come.
    pub(crate) left: u64,
}

impl Job for Check {
    fn direction(&self) -> Direction {
        Direction::Read
    }

    fn next(&mut self, _now: Instant, slot: &mut Slot) -> anyhow::Result<Option<DiskAddress>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        // A read that does nothing must not find what an earlier one has brought.
        slot.buffer.overwrite()?;
        Ok(self.extent.random(&mut self.rng))
    }

    fn done(&mut self, _now: Instant, slot: &Slot) -> anyhow::Result<()> {
        slot.buffer.compare(slot.address)
    }
}

/// A time that begins with the first transfer, however long it takes to come to that.
pub(crate) struct Period {
    begun: Option<Instant>,
    time: Duration,
}

impl Period {
    pub(crate) fn new(time: Duration) -> Self {
        Self { begun: None, time }
    }

    /// Whether there may be another transfer.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return true;
        };
        now < begun + self.time
    }
}

/// Transfers at random addresses for a time, and notes how long each took.
pub(crate) struct Timed {
    pub(crate) direction: Direction,
    pub(crate) extent: Extent,
    pub(crate) rng: Rng,
    period: Period,
    last: Option<Instant>,
    /// Latencies in nanoseconds, one for each transfer that completed.
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

    /// Transfers a second, from the first submission to the last completion.
    pub(crate) fn rate(&self) -> f64 {
        let time = self.period.begun.zip(self.last);
        let time = time.map_or(Duration::ZERO, |(begun, last)| last - begun);
        count(&self.latencies) / time.as_secs_f64()
    }
}

/// A page of memory for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Where it is in its memory.
    pub(crate) offset: usize,
    /// Where the device sees it.
    pub(crate) address: u64,
}

/// A job whose transfers go each to another page, chosen at random; without any, each command keeps its own memory.
pub(crate) struct Scattered<'a, J> {
    pub(crate) job: J,
    /// The pages.
    pub(crate) spots: &'a [Spot],
    /// How many commands share them: none uses a page that another one may be given.
    pub(crate) commands: usize,
    pub(crate) rng: Rng,
}

impl<J: Job> Job for Scattered<'_, J> {
    fn direction(&self) -> Direction {
        self.job.direction()
    }

    fn next(&mut self, now: Instant, slot: &mut Slot) -> anyhow::Result<Option<DiskAddress>> {
        if let Some(rounds) = self
            .spots
            .len()
            .checked_div(self.commands)
            .filter(|rounds| *rounds > 0)
        {
            let index = self.rng.usize(..rounds) * self.commands + usize::from(slot.cid());
            slot.use_spot(self.spots.get(index).copied());
        }
        self.job.next(now, slot)
    }

    fn done(&mut self, now: Instant, slot: &Slot) -> anyhow::Result<()> {
        self.job.done(now, slot)
    }
}

/// How many values there are.
pub(crate) fn count(histogram: &Histogram<u64>) -> f64 {
    exact(histogram.len())
}

/// The same number, if it is below 2^53.
pub(crate) fn exact(number: u64) -> f64 {
    Duration::from_secs(number).as_secs_f64()
}

impl Job for Timed {
    fn direction(&self) -> Direction {
        self.direction
    }

    fn next(&mut self, now: Instant, _slot: &mut Slot) -> anyhow::Result<Option<DiskAddress>> {
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
        namespaces: 2,
        bytes: 4096,
        transfers: 3,
    };

    #[test]
    fn transfers_go_through_all_namespaces() {
        let address = |nsid, offset| Some(DiskAddress { nsid, offset });
        let addresses = [
            address(1, 0),
            address(1, 8192),
            address(2, 0),
            address(2, 8192),
            None,
        ];
        for (number, expected) in [0, 2, 3, 5, 6].into_iter().zip(addresses) {
            assert_eq!(EXTENT.transfer(number), expected, "{number}");
        }
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
        let words = (0..6).flat_map(|number| {
            let address = EXTENT.transfer(number).unwrap();
            data(address, 4096)
        });
        let words: Vec<u64> = words.collect();
        let different: std::collections::HashSet<&u64> = words.iter().collect();
        assert_eq!(different.len(), words.len());
        assert!(!words.contains(&u64::MAX));
    }
}
