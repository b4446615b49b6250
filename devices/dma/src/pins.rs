//! The addresses of transfers that the kernel executes, and the changes that wait for such
//! transfers to end.
//!
//! A copy is over when the lock of the routes is released. A kernel transfer pins its addresses
//! instead. A change that takes one of them away is answered only when the transfer has ended or
//! was given up, which makes its memory private. Changes of peers' windows wait only briefly: a
//! lease protects them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use peerbar_dma_log::{Completer, Direction, Route};
use peerbar_pci::{BusAddress, Iova, Range};
use slab::Slab;

use crate::memory::{MemoryFile, Span};

/// The transfers of a function that are in progress outside its threads.
#[derive(Default)]
pub(crate) struct Pins {
    table: Mutex<Table>,
    /// Signalled when a transfer ends while a change waits.
    ended: Condvar,
}

#[derive(Default)]
struct Table {
    transfers: Slab<PinnedTransfer>,
    /// Empty lists of transfers that have ended, for reuse: a new transfer allocates none.
    spare: Vec<(Vec<PinnedPart>, Vec<PinnedRange>)>,
    /// The number of transfers that have begun so far.
    begun: u64,
    waiting: usize,
}

struct PinnedTransfer {
    number: u64,
    direction: Direction,
    parts: Vec<PinnedPart>,
    is_given_up: bool,
}

/// A range of a transfer, as changes see it: by its addresses on the bus, where windows are.
struct PinnedPart {
    addresses: Range<BusAddress>,
    /// The address of the memory's description, which distinguishes it from all others.
    memory: usize,
    offset: u64,
    len: usize,
}

impl Table {
    /// Returns `true` if one of the first `begun` transfers is in progress and overlaps this range.
    fn meets(&self, range: Range<BusAddress>, begun: u64) -> bool {
        let mut transfers = self.transfers.iter();
        transfers.any(|(_, transfer)| {
            transfer.number <= begun
                && !transfer.is_given_up
                && transfer
                    .parts
                    .iter()
                    .any(|part| part.addresses.overlaps(&range))
        })
    }
}

impl Table {
    /// Gives up those of the first `begun` transfers that are in progress, if all of their memory
    /// is lent. The kernel's further work for them stays in this process.
    fn give_up(&mut self, begun: u64, lent: &[Arc<MemoryFile>]) {
        let transfers = self.transfers.iter_mut().map(|(_, transfer)| transfer);
        let mut given_up = 0;
        for transfer in transfers.filter(|transfer| transfer.number <= begun) {
            if !transfer.is_given_up && transfer.detach(lent) {
                transfer.is_given_up = true;
                given_up += 1;
            }
        }
        log::error!(
            "the host's disk does not answer: {given_up} transfers are given up, and requests to memory that was mapped before fail until it is mapped again"
        );
    }
}

impl PinnedTransfer {
    /// Detaches all of its memory from other processes' view. Returns `true` on success. Memory
    /// that the kernel still reads keeps its present content.
    fn detach(&self, lent: &[Arc<MemoryFile>]) -> bool {
        let is_lent = |part: &PinnedPart| part.find(lent).is_some();
        self.parts.iter().all(is_lent)
            && self.parts.iter().all(|part| {
                let kept = (self.direction == Direction::Read).then_some((part.offset, part.len));
                part.find(lent)
                    .is_some_and(|memory| memory.detach(kept).is_ok())
            })
    }
}

impl PinnedPart {
    fn of(range: &PinnedRange) -> Self {
        Self {
            addresses: range.addresses.on_bus(),
            memory: Arc::as_ptr(&range.span.file).addr(),
            offset: range.span.offset,
            len: range.len,
        }
    }

    /// Returns its memory, if it is among these.
    fn find<'a>(&self, memory: &'a [Arc<MemoryFile>]) -> Option<&'a MemoryFile> {
        let mut memory = memory.iter().map(Arc::as_ref);
        memory.find(|memory| std::ptr::from_ref::<MemoryFile>(memory).addr() == self.memory)
    }
}

/// A part of a transfer that lies in one memory and is reached by one route.
pub(crate) struct PinnedRange {
    pub(crate) addresses: Range<Iova>,
    pub(crate) len: usize,
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl Pins {
    /// Begins a transfer. Returns its key, and an empty list for the ranges of the next one. Must
    /// be called with the lock held under which its routes were found.
    pub(crate) fn begin(
        &self,
        direction: Direction,
        ranges: &[PinnedRange],
    ) -> (usize, Vec<PinnedRange>) {
        let mut table = self.table.lock();
        table.begun += 1;
        let number = table.begun;
        let (mut parts, spare) = table.spare.pop().unwrap_or_default();
        parts.extend(ranges.iter().map(PinnedPart::of));
        let transfer = PinnedTransfer {
            number,
            direction,
            parts,
            is_given_up: false,
        };
        (table.transfers.insert(transfer), spare)
    }

    pub(crate) fn end(&self, key: usize, mut ranges: Vec<PinnedRange>) {
        ranges.clear();
        let mut table = self.table.lock();
        if let Some(transfer) = table.transfers.try_remove(key) {
            let mut parts = transfer.parts;
            parts.clear();
            table.spare.push((parts, ranges));
        }
        if table.waiting > 0 {
            self.ended.notify_all();
        }
    }

    /// Returns `true` if a transfer in progress overlaps this range.
    pub(crate) fn meet(&self, range: Range<BusAddress>) -> bool {
        let table = self.table.lock();
        table.meets(range, table.begun)
    }

    /// Waits until every transfer that has begun by now and overlaps this range has ended. After
    /// the time limit, gives up all transfers that have begun by now and whose memory is among that
    /// of `lent`, and waits for the others.
    pub(crate) fn wait(
        &self,
        range: Range<BusAddress>,
        limit: Option<Duration>,
        lent: impl Fn() -> Vec<Arc<MemoryFile>>,
    ) {
        let mut table = self.table.lock();
        let begun = table.begun;
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        table.waiting += 1;
        while table.meets(range, begun) {
            let Some(at) = deadline else {
                self.ended.wait(&mut table);
                continue;
            };
            if self.ended.wait_until(&mut table, at).timed_out() {
                deadline = None;
                // The table must not be locked here: a map of memory is changed with its own lock
                // held.
                let lent = MutexGuard::unlocked(&mut table, &lent);
                table.give_up(begun, &lent);
            }
        }
        table.waiting -= 1;
    }

    /// Waits until every transfer that has begun by now and overlaps this range has ended, or until
    /// the deadline.
    pub(crate) fn wait_until(&self, range: Range<BusAddress>, deadline: Instant) {
        let mut table = self.table.lock();
        let begun = table.begun;
        table.waiting += 1;
        while table.meets(range, begun) {
            if self.ended.wait_until(&mut table, deadline).timed_out() {
                log::debug!("the kernel still moves data at {range}, where a window is closed");
                break;
            }
        }
        table.waiting -= 1;
    }

    /// Returns the number of waiting changes.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiting
    }
}
