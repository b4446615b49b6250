//! The record of every DMA, summed: the witness of which way the data went.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerbar_dma_log::{Completer, Direction, Purpose, Route};

const PURPOSES: [Purpose; 5] = [
    Purpose::Command,
    Purpose::Completion,
    Purpose::List,
    Purpose::Control,
    Purpose::Payload,
];
const ROUTES: [Route; 5] = [
    Route::OwnBar,
    Route::Peer,
    Route::GuestRam,
    Route::Upstream,
    Route::Refused,
];
const COMPLETERS: [Completer; 5] = [
    Completer::OwnMemory,
    Completer::GuestRam,
    Completer::PeerBar,
    Completer::Nobody,
    Completer::Unknown,
];
const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];
const ENTRIES: usize = PURPOSES.len() * ROUTES.len() * COMPLETERS.len() * DIRECTIONS.len();

/// What a DMA was and which way it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// What it was for.
    pub purpose: Purpose,
    /// The way that it took.
    pub route: Route,
    /// Who owns the memory that it met.
    pub completer: Completer,
    /// Which way the data went.
    pub direction: Direction,
}

impl Entry {
    fn index(self) -> usize {
        let index = self.purpose as usize * ROUTES.len() + self.route as usize;
        let index = index * COMPLETERS.len() + self.completer as usize;
        index * DIRECTIONS.len() + self.direction as usize
    }

    fn all() -> impl Iterator<Item = Self> {
        PURPOSES.into_iter().flat_map(|purpose| {
            ROUTES.into_iter().flat_map(move |route| {
                COMPLETERS.into_iter().flat_map(move |completer| {
                    DIRECTIONS.into_iter().map(move |direction| Self {
                        purpose,
                        route,
                        completer,
                        direction,
                    })
                })
            })
        })
    }
}

/// How often, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pieces that succeeded.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces that failed.
    pub failures: u64,
}

/// Counters of one requester. They only grow, for as long as the device lives: a reset does not clear them.
#[derive(Debug, Default)]
pub struct Counters {
    shared: Ledger,
    /// Each of one thread, which counts there without keeping others from it.
    own: Mutex<Vec<Arc<Ledger>>>,
}

/// Counters that are summed with others.
#[derive(Debug)]
pub(crate) struct Ledger {
    entries: [[AtomicU64; 3]; ENTRIES],
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            entries: [const { [const { AtomicU64::new(0) }; 3] }; ENTRIES],
        }
    }
}

impl Ledger {
    /// A piece has succeeded. Nobody else counts here.
    pub(crate) fn succeeded(&self, entry: Entry, bytes: u64) {
        if let Some([requests, sum, _]) = self.entries.get(entry.index()) {
            for (counter, more) in [(requests, 1), (sum, bytes)] {
                let was = counter.load(Ordering::Relaxed);
                counter.store(was.wrapping_add(more), Ordering::Relaxed);
            }
        }
    }

    fn counts(&self) -> impl Iterator<Item = [u64; 3]> {
        let load = |counters: &[AtomicU64; 3]| {
            counters
                .each_ref()
                .map(|counter| counter.load(Ordering::Relaxed))
        };
        self.entries.iter().map(load)
    }

    /// Adds what another one has counted.
    fn add(&self, other: &Self) {
        for (sums, counts) in self.entries.iter().zip(other.counts()) {
            for (sum, count) in sums.iter().zip(counts) {
                sum.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

impl Counters {
    /// A ledger of the caller's own.
    pub(crate) fn open(&self) -> Arc<Ledger> {
        let ledger = Arc::<Ledger>::default();
        self.own().push(ledger.clone());
        ledger
    }

    /// Nobody counts in a ledger any more.
    pub(crate) fn close(&self, ledger: &Arc<Ledger>) {
        let mut own = self.own();
        own.retain(|other| !Arc::ptr_eq(other, ledger));
        self.shared.add(ledger);
    }

    fn own(&self) -> MutexGuard<'_, Vec<Arc<Ledger>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn succeeded(&self, entry: Entry, bytes: u64) {
        if let Some([requests, sum, _]) = self.shared.entries.get(entry.index()) {
            requests.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, entry: Entry) {
        if let Some([_, _, failures]) = self.shared.entries.get(entry.index()) {
            failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every combination that has occurred, with its counts.
    pub fn snapshot(&self) -> Vec<(Entry, Count)> {
        let sum = Ledger::default();
        let own = self.own();
        sum.add(&self.shared);
        own.iter().for_each(|ledger| sum.add(ledger));
        let count = |[requests, bytes, failures]: [u64; 3]| Count {
            requests,
            bytes,
            failures,
        };
        Entry::all()
            .zip(sum.counts().map(count))
            .filter(|(_, count)| *count != Count::default())
            .collect()
    }

    /// The same as the page that a device shows its guest ([`peerbar_dma_log`]).
    pub fn page(&self) -> Vec<u8> {
        let entries = self.snapshot();
        peerbar_dma_log::encode(
            entries
                .into_iter()
                .map(|(entry, count)| peerbar_dma_log::Entry {
                    purpose: entry.purpose,
                    route: entry.route,
                    completer: entry.completer,
                    direction: entry.direction,
                    requests: count.requests,
                    bytes: count.bytes,
                    failures: count.failures,
                }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_counter_of_its_own() {
        let counters = Counters::default();
        for (number, entry) in Entry::all().enumerate() {
            assert_eq!(entry.index(), number);
            counters.succeeded(entry, number as u64 + 1);
        }
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.len(), 250);
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
        for (number, entry) in Entry::all().enumerate() {
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
    fn what_threads_have_counted_for_themselves_is_part_of_the_sum_even_after_them() {
        let counters = Counters::default();
        let entry = Entry {
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
        let ledgers = [(); 2].map(|()| counters.open());
        counters.succeeded(entry, 1);
        ledgers[0].succeeded(entry, 10);
        ledgers[1].succeeded(entry, 100);
        assert_eq!(counters.snapshot(), count(3, 111));
        counters.close(&ledgers[0]);
        ledgers[1].succeeded(entry, 100);
        assert_eq!(counters.snapshot(), count(4, 211));
    }

    #[test]
    fn a_failure_is_no_success() {
        let counters = Counters::default();
        let entry = Entry {
            purpose: Purpose::Payload,
            route: Route::Upstream,
            completer: Completer::Nobody,
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
