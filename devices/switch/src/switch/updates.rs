//! The changes of its peers that an endpoint has not acknowledged.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use crate::message::PortId;
use crate::window::{BarWindow, Descriptor};

/// The changes of its peers that an endpoint has not acknowledged: the newest of each peer,
/// regardless of how often that peer changes, and one at a time on the wire. So no peer fills its
/// queue, and few descriptors are in flight to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Updates {
    /// One for each peer, in the order in which they first came.
    pub(super) pending: VecDeque<Update>,
    /// The change that has been sent and is not acknowledged.
    pub(super) sent: Option<Sent>,
    /// The peers whose windows the endpoint has been sent.
    known: BTreeSet<PortId>,
}

/// All windows of a peer.
#[derive(Clone, Debug)]
pub(super) struct Update {
    pub(super) peer: PortId,
    pub(super) windows: Vec<BarWindow>,
    pub(super) leases: Descriptor,
    /// The count of the first change of the peer that the endpoint has not been sent, or `None` if
    /// no request depends on it.
    pub(super) since: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) ticket: u64,
    peer: PortId,
    at: Instant,
}

impl Updates {
    /// Adds a change, or replaces a pending one of the same peer: even if peers change often, the
    /// endpoint is sent each change in time.
    pub(super) fn push(&mut self, update: Update) {
        let mut pending = self.pending.iter_mut();
        let Some(former) = pending.find(|former| former.peer == update.peer) else {
            self.pending.push_back(update);
            return;
        };
        let since = former.since.or(update.since);
        *former = Update { since, ..update };
    }

    /// Forgets a peer that is permanently gone, with all its windows. No announcement waits for
    /// that.
    pub(super) fn forget(&mut self, peer: PortId) {
        if self.known.remove(&peer) {
            let windows = Vec::new();
            self.push(Update {
                peer,
                windows,
                leases: Descriptor::default(),
                since: None,
            });
        } else {
            self.pending.retain(|update| update.peer != peer);
        }
    }

    /// Adds a change of [`PortId::NONE`]: all pending changes come before it.
    pub(super) fn mark(&mut self) {
        self.push(Update {
            peer: PortId::NONE,
            windows: Vec::new(),
            leases: Descriptor::default(),
            since: None,
        });
    }

    /// Returns the next change to send now with this ticket, and `true` if it is the first of its
    /// peer. Returns `None` before the last one is acknowledged.
    pub(super) fn next(&mut self, ticket: u64, now: Instant) -> Option<(Update, bool)> {
        if self.sent.is_some() {
            return None;
        }
        let update = self.pending.pop_front()?;
        let (peer, at) = (update.peer, now);
        self.sent = Some(Sent { ticket, peer, at });
        let is_first = !update.windows.is_empty() && self.known.insert(update.peer);
        Some((update, is_first))
    }

    /// Acknowledges the change that was sent, if it has this ticket. Returns `true` in that case.
    pub(super) fn acknowledge(&mut self, ticket: u64) -> bool {
        self.sent.take_if(|sent| sent.ticket == ticket).is_some()
    }

    /// Returns the time at which the unacknowledged change was sent.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.sent.map(|sent| sent.at)
    }

    /// Returns `true` if the endpoint has not acknowledged all changes of this peer.
    pub(super) fn has_unacknowledged(&self, peer: PortId) -> bool {
        let is_sent = self.sent.is_some_and(|sent| sent.peer == peer);
        is_sent || self.pending.iter().any(|update| update.peer == peer)
    }

    /// Returns the count of the first change that the endpoint has not been sent.
    pub(super) fn first_unsent(&self) -> Option<u64> {
        self.pending.iter().filter_map(|update| update.since).min()
    }
}
