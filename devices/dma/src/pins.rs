//! The addresses of transfers that the kernel carries out, and the changes that wait for the end of such transfers.
//!
//! A copy is over when the lock of the routes is released. A transfer of the kernel pins its addresses instead, and a change
//! that takes one of them away is answered only when the transfer has ended.

use parking_lot::{Condvar, Mutex};
use peerbar_dma_log::{Completer, Route};
use slab::Slab;

use crate::address::AddressRange;
use crate::loans::Loans;
use crate::memory::Span;

/// The transfers of a function that are in progress outside of its threads.
#[derive(Default)]
pub(crate) struct Pins {
    table: Mutex<Table>,
    /// A transfer has ended while a change waits.
    ended: Condvar,
}

#[derive(Default)]
struct Table {
    transfers: Slab<PinnedTransfer>,
    /// Empty lists of transfers that have ended: a new one allocates none.
    spare: Vec<(Vec<AddressRange>, Vec<PinnedRange>)>,
    /// How many transfers have begun so far.
    begun: u64,
    waiting: usize,
}

struct PinnedTransfer {
    number: u64,
    addresses: Vec<AddressRange>,
}

impl Table {
    /// Whether one of the first `begun` transfers is in progress and meets this range.
    fn meets(&self, range: AddressRange, begun: u64) -> bool {
        let mut transfers = self.transfers.iter();
        transfers.any(|(_, transfer)| {
            transfer.number <= begun && transfer.addresses.iter().any(|own| own.meets(range))
        })
    }
}

/// A part of a transfer that lies in one memory and is reached by one route.
pub(crate) struct PinnedRange {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl Pins {
    /// Begins a transfer; its key, and an empty list for the ranges of the next one. To be called with the lock held under
    /// which its routes were found.
    pub(crate) fn begin(&self, ranges: &[PinnedRange]) -> (usize, Vec<PinnedRange>) {
        let mut table = self.table.lock();
        table.begun += 1;
        let number = table.begun;
        let (mut addresses, spare) = table.spare.pop().unwrap_or_default();
        let of = |range: &PinnedRange| AddressRange::new(range.address, range.len as u64);
        addresses.extend(ranges.iter().map(of));
        let transfer = PinnedTransfer { number, addresses };
        (table.transfers.insert(transfer), spare)
    }

    pub(crate) fn end(&self, key: usize, mut ranges: Vec<PinnedRange>) {
        ranges.clear();
        let mut table = self.table.lock();
        if let Some(transfer) = table.transfers.try_remove(key) {
            let mut addresses = transfer.addresses;
            addresses.clear();
            table.spare.push((addresses, ranges));
        }
        if table.waiting > 0 {
            self.ended.notify_all();
        }
    }

    /// Whether a transfer is in progress that meets this range.
    pub(crate) fn meet(&self, range: AddressRange) -> bool {
        let table = self.table.lock();
        table.meets(range, table.begun)
    }

    /// Waits until every transfer that has begun by now and overlaps this range has ended.
    pub(crate) fn wait(&self, range: AddressRange) {
        let mut table = self.table.lock();
        let begun = table.begun;
        table.waiting += 1;
        while table.meets(range, begun) {
            self.ended.wait(&mut table);
        }
        table.waiting -= 1;
    }

    /// How many changes wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiting
    }
}

/// A change after which no new transfer uses the addresses that it took away. Dropping this waits for the transfers that had
/// begun there before, and for copies of what was lent.
///
/// It is **not to be dropped with a lock held** that is needed to carry such transfers to their end.
pub struct Drain<'a> {
    pub(crate) pins: &'a Pins,
    pub(crate) loans: &'a Loans,
    /// What was taken away.
    pub(crate) ranges: Vec<AddressRange>,
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        for range in self.ranges.drain(..) {
            self.pins.wait(range);
            self.loans.wait(range);
        }
    }
}
