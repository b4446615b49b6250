//! Changes of the routes that wait for the transfers that have begun before.

use std::time::Instant;

use crate::address::AddressRange;
use crate::switch_limits::CLOSING_TIME_OUT;

use super::Requester;

/// A change after which no new transfer uses the addresses that it took away. Dropping this waits for the transfers that had
/// begun there before.
///
/// It is **not to be dropped with a lock held** that is needed to carry such transfers to their end.
pub struct Drain<'a> {
    requester: &'a Requester,
    /// What was taken away.
    pub(super) ranges: Vec<AddressRange>,
    /// How it waits: without end, or for peers' windows only for as long as their owners do.
    wait: fn(&Requester, &[AddressRange]),
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        (self.wait)(self.requester, &self.ranges);
    }
}

impl Requester {
    /// May be made before or after the release of the lock under which these addresses were taken away.
    pub(super) fn drain(&self, ranges: Vec<AddressRange>) -> Drain<'_> {
        Drain {
            requester: self,
            ranges,
            wait: Self::wait_for_transfers,
        }
    }

    /// The same, of windows of peers.
    pub(super) fn drain_peers(&self, ranges: Vec<AddressRange>) -> Drain<'_> {
        Drain {
            requester: self,
            ranges,
            wait: Self::wait_for_peers_transfers,
        }
    }

    /// Waits until no transfer that has begun by now uses these addresses. Not to be called with a lock held that is needed to
    /// carry such transfers to their end.
    pub(crate) fn wait_for_transfers(&self, ranges: &[AddressRange]) {
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

    /// As [`Requester::wait_for_transfers`], for windows of peers: 250 ms at most, since the owner of a window waits no longer, and a
    /// second for many in a row. Its lease has ended, so what is moved later fails.
    fn wait_for_peers_transfers(&self, ranges: &[AddressRange]) {
        let began = Instant::now();
        let left = self.peer_wait_budget.left(began).min(CLOSING_TIME_OUT);
        for range in ranges {
            self.pins.wait_until(*range, began + left);
        }
        self.peer_wait_budget.spend(Instant::now(), began.elapsed());
    }
}
