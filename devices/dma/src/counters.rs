//! Sums of every DMA by purpose, route and completer, and counts of other events.

mod file;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use peerbar_dma_log::counter_file::{DeviceEvent, NUMBERS, SHARED_SLOT, SLOTS};
use peerbar_dma_log::{AtsCounts, DmaKind, Entry};

pub use file::CounterFile;

/// Numbers of segments and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Segments that succeeded.
    pub requests: u64,
    /// Bytes of the segments that succeeded.
    pub bytes: u64,
    /// Segments that failed.
    pub failures: u64,
}

/// Counters of one requester. They only grow during the life of the device: a reset does not clear
/// them.
///
/// They are sums over slots. Each session has its own slot, so that it counts without an atomic
/// addition.
#[derive(Debug)]
pub struct Counters {
    /// The counts from before a file was shared: the numbers of each kind in each slot.
    own: Box<[[AtomicU64; NUMBERS]]>,
    /// The counts since then.
    file: OnceLock<CounterFile>,
    free: Mutex<Vec<usize>>,
    /// `true` if the function counts its client's doorbells.
    counts_doorbells: AtomicBool,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || [const { AtomicU64::new(0) }; NUMBERS];
        Self {
            own: (0..SLOTS * DmaKind::COUNT).map(|_| zero()).collect(),
            file: OnceLock::new(),
            free: Mutex::new((SHARED_SLOT + 1..SLOTS).rev().collect()),
            counts_doorbells: AtomicBool::new(false),
        }
    }
}

/// A slot with one writer. It keeps its counts for the next session, so that sums never go back.
#[derive(Debug)]
pub(crate) struct CounterSlot(usize);

impl CounterSlot {
    /// Counts a segment that has succeeded.
    #[inline]
    pub(crate) fn succeeded(&self, counters: &Counters, kind: DmaKind, bytes: u64) {
        if self.0 == SHARED_SLOT {
            return counters.succeeded(kind, bytes);
        }
        if let Some([requests, sum, _]) = counters.numbers(self.0, kind) {
            for (number, more) in [(requests, 1), (sum, bytes)] {
                let was = number.load(Ordering::Relaxed);
                number.store(was.wrapping_add(more), Ordering::Relaxed);
            }
        }
    }
}

impl Counters {
    /// Counts in this file from now on, for the life of the function. Ignores a second file.
    pub(crate) fn share(&self, file: CounterFile) {
        if self.counts_doorbells.load(Ordering::Relaxed) {
            file.set_counts_doorbells();
        }
        if self.file.set(file).is_err() {
            log::error!("a function has one counter file");
        }
    }

    /// Declares that the function counts its client's doorbells. Must precede [`Counters::share`].
    pub(crate) fn count_doorbells(&self) {
        self.counts_doorbells.store(true, Ordering::Relaxed);
    }

    /// Counts an event in the file, if there is one. Events are counted nowhere else.
    pub(crate) fn happened(&self, event: DeviceEvent) {
        if let Some(number) = self.file.get().and_then(|file| file.event(event)) {
            number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reserves a slot for the caller alone, or the shared one if there are too many callers.
    pub(crate) fn open(&self) -> CounterSlot {
        CounterSlot(self.free.lock().pop().unwrap_or(SHARED_SLOT))
    }

    /// Frees a slot for the next session.
    pub(crate) fn close(&self, slot: &CounterSlot) {
        if slot.0 != SHARED_SLOT {
            self.free.lock().push(slot.0);
        }
    }

    pub(crate) fn succeeded(&self, kind: DmaKind, bytes: u64) {
        if let Some([requests, sum, _]) = self.numbers(SHARED_SLOT, kind) {
            requests.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, kind: DmaKind) {
        if let Some([_, _, failures]) = self.numbers(SHARED_SLOT, kind) {
            failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Publishes the translation cache's counts.
    pub(crate) fn set_ats(&self, counts: &AtsCounts) {
        if let Some(file) = self.file.get() {
            file.set_ats(counts);
        }
    }

    /// Returns the current numbers of a kind in that slot.
    #[inline]
    fn numbers(&self, slot: usize, kind: DmaKind) -> Option<[&AtomicU64; NUMBERS]> {
        match self.file.get() {
            Some(file) => file.numbers(slot, kind),
            None => self.own_numbers(slot, kind),
        }
    }

    fn own_numbers(&self, slot: usize, kind: DmaKind) -> Option<[&AtomicU64; NUMBERS]> {
        let numbers = self.own.get(slot * DmaKind::COUNT + kind.index());
        numbers.map(|numbers| numbers.each_ref())
    }

    /// Returns the sums of a kind over all slots.
    fn sum(&self, kind: DmaKind) -> Count {
        let slots = || 0..SLOTS;
        let file = self.file.get();
        let shared = file
            .into_iter()
            .flat_map(|file| slots().map(|slot| file.numbers(slot, kind)));
        let own = slots().map(|slot| self.own_numbers(slot, kind));
        own.chain(shared)
            .flatten()
            .fold(Count::default(), |sum, numbers| {
                let [requests, bytes, failures] =
                    numbers.map(|number| number.load(Ordering::Relaxed));
                Count {
                    requests: sum.requests.wrapping_add(requests),
                    bytes: sum.bytes.wrapping_add(bytes),
                    failures: sum.failures.wrapping_add(failures),
                }
            })
    }

    /// Returns every kind that has occurred, with its counts.
    pub fn snapshot(&self) -> Vec<(DmaKind, Count)> {
        let counts = DmaKind::all().map(|kind| (kind, self.sum(kind)));
        counts
            .filter(|(_, count)| *count != Count::default())
            .collect()
    }

    /// Returns the page of counters that a device shows its guest ([`peerbar_dma_log`]).
    pub fn page(&self) -> Vec<u8> {
        peerbar_dma_log::encode(self.snapshot().into_iter().map(|(kind, count)| Entry {
            requests: count.requests,
            bytes: count.bytes,
            failures: count.failures,
            ..Entry::none(kind)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Completer, Direction, Purpose, Route};

    #[test]
    fn every_combination_has_a_counter_of_its_own() {
        let counters = Counters::default();
        for (number, entry) in DmaKind::all().enumerate() {
            assert_eq!(entry.index(), number);
            counters.succeeded(entry, number as u64 + 1);
        }
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.len(), 300);
        for (number, (entry, count)) in snapshot.into_iter().enumerate() {
            assert_eq!(entry.index(), number);
            assert_eq!(
                count,
                Count {
                    requests: 1,
                    bytes: number as u64 + 1,
                    failures: 0
                }
            );
        }
    }

    #[test]
    fn the_page_says_what_the_counters_say() {
        let counters = Counters::default();
        for (number, entry) in DmaKind::all().take(200).enumerate() {
            counters.succeeded(entry, number as u64 + 1);
            counters.failed(entry);
        }
        let page = peerbar_dma_log::parse(&counters.page()).unwrap();
        let said: Vec<_> = page
            .iter()
            .map(|e| (e.purpose, e.route, e.completer, e.direction, e.bytes))
            .collect();
        let counted: Vec<_> = counters
            .snapshot()
            .iter()
            .map(|(e, c)| (e.purpose, e.route, e.completer, e.direction, c.bytes))
            .collect();
        assert_eq!(said, counted);
        assert!(page.iter().all(|e| (e.requests, e.failures) == (1, 1)));
    }

    #[test]
    fn slots_of_threads_are_part_of_the_sum_after_they_close() {
        let counters = Counters::default();
        let entry = DmaKind {
            purpose: Purpose::Payload,
            route: Route::GuestRam,
            completer: Completer::GuestRam,
            direction: Direction::Read,
        };
        let count = |requests, bytes| {
            let failures = 0;
            vec![(
                entry,
                Count {
                    requests,
                    bytes,
                    failures,
                },
            )]
        };
        let slots = [(); 2].map(|()| counters.open());
        counters.succeeded(entry, 1);
        slots[0].succeeded(&counters, entry, 10);
        slots[1].succeeded(&counters, entry, 100);
        assert_eq!(counters.snapshot(), count(3, 111));
        counters.close(&slots[0]);
        let again = counters.open();
        again.succeeded(&counters, entry, 1000);
        slots[1].succeeded(&counters, entry, 100);
        assert_eq!(counters.snapshot(), count(5, 1211));
    }

    #[test]
    fn a_failure_is_no_success() {
        let counters = Counters::default();
        let entry = DmaKind {
            purpose: Purpose::Payload,
            route: Route::Upstream,
            completer: Completer::None,
            direction: Direction::Write,
        };
        counters.failed(entry);
        assert_eq!(
            counters.snapshot(),
            [(
                entry,
                Count {
                    requests: 0,
                    bytes: 0,
                    failures: 1
                }
            )]
        );
    }
}
