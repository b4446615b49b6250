//! Changes of the routes that wait for earlier transfers.

use std::time::Instant;

use peerbar_pci::{BusAddress, Range};

use crate::switch_limits::CLOSING_TIME_OUT;

use super::Requester;

/// A change after which no new transfer uses the addresses that it took away. Dropping it waits for
/// transfers that had begun there before.
///
/// It must **not be dropped while a lock is held** that such transfers need to finish.
pub struct Drain<'a> {
    requester: &'a Requester,
    /// The ranges that were taken away.
    pub(super) ranges: Vec<Range<BusAddress>>,
    /// Waits for the transfers: without limit, or for peers' windows only for as long as their
    /// owners wait.
    wait: fn(&Requester, &[Range<BusAddress>]),
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        (self.wait)(self.requester, &self.ranges);
    }
}

impl Requester {
    /// May be called before or after the release of the lock under which these addresses were taken
    /// away.
    pub(super) fn drain(&self, ranges: Vec<Range<BusAddress>>) -> Drain<'_> {
        Drain {
            requester: self,
            ranges,
            wait: Self::wait_for_transfers,
        }
    }

    /// Returns the same, for peers' windows.
    pub(super) fn drain_peers(&self, ranges: Vec<Range<BusAddress>>) -> Drain<'_> {
        Drain {
            requester: self,
            ranges,
            wait: Self::wait_for_peers_transfers,
        }
    }

    /// Waits until no transfer that has begun by now uses these addresses. Must not be called with
    /// a lock held that such transfers need to finish.
    pub(crate) fn wait_for_transfers(&self, ranges: &[Range<BusAddress>]) {
        let lent = || {
            let mut mapped = self.client_memory.lock().mapped();
            mapped.extend(self.peer_memory.lock().mapped());
            mapped
        };
        for range in ranges {
            self.pins
                .wait(*range, self.transfer_timeout.get().copied(), lent);
        }
    }

    /// Like [`Requester::wait_for_transfers`], for peers' windows: at most 250 ms, since the owner
    /// of a window waits no longer, and a second for many in a row. The window's lease has ended,
    /// so later transfers fail.
    fn wait_for_peers_transfers(&self, ranges: &[Range<BusAddress>]) {
        let began = Instant::now();
        let left = self.peer_wait_budget.left(began).min(CLOSING_TIME_OUT);
        for range in ranges {
            self.pins.wait_until(*range, began + left);
        }
        self.peer_wait_budget.spend(Instant::now(), began.elapsed());
    }
}
