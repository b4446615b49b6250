//! What an endpoint is still to learn of its peers.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use crate::message::PortId;
use crate::window::{BarWindow, Descriptor};

/// The changes of its peers that an endpoint has not acknowledged: the newest of each peer, however often that changes, and
/// one at a time on the wire. So nobody fills its queue, and few descriptors are on their way to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Updates {
    /// In ascending order of their epochs.
    pub(super) pending: VecDeque<Update>,
    /// The one that is sent.
    pub(super) sent: Option<Sent>,
    /// The peers that it has learned of.
    known: BTreeSet<PortId>,
}

/// All windows of a peer.
#[derive(Clone, Debug)]
pub(super) struct Update {
    pub(super) peer: PortId,
    pub(super) windows: Vec<BarWindow>,
    pub(super) leases: Descriptor,
    /// Number of the change; none if it is the peer's introduction, for which no announcement waits.
    pub(super) epoch: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) ticket: u64,
    epoch: Option<u64>,
    at: Instant,
}

impl Updates {
    /// Adds it, in place of a pending one of the same peer. Its epoch is greater than all before.
    pub(super) fn push(&mut self, update: Update) {
        self.pending.retain(|other| other.peer != update.peer);
        self.pending.push_back(update);
    }

    /// A peer has gone for good, with all its windows. Nobody waits for that.
    pub(super) fn forget(&mut self, peer: PortId) {
        if self.known.remove(&peer) {
            let windows = Vec::new();
            self.push(Update {
                peer,
                windows,
                leases: Descriptor::default(),
                epoch: None,
            });
        } else {
            self.pending.retain(|update| update.peer != peer);
        }
    }

    /// Adds a change of nobody: all that are pending now come before it.
    pub(super) fn mark(&mut self) {
        self.push(Update {
            peer: PortId::NOBODY,
            windows: Vec::new(),
            leases: Descriptor::default(),
            epoch: None,
        });
    }

    /// The next one to be sent now with this ticket, and whether it is the first of its peer. None before the last is
    /// acknowledged. In the order in which they came, so that a former owner's windows are gone before another's are announced.
    pub(super) fn next(&mut self, ticket: u64, now: Instant) -> Option<(Update, bool)> {
        if self.sent.is_some() {
            return None;
        }
        let update = self.pending.pop_front()?;
        let (epoch, at) = (update.epoch, now);
        self.sent = Some(Sent { ticket, epoch, at });
        let is_first = !update.windows.is_empty() && self.known.insert(update.peer);
        Some((update, is_first))
    }

    /// Whether the one that is sent has this ticket; it is acknowledged then.
    pub(super) fn acknowledge(&mut self, ticket: u64) -> bool {
        self.sent.take_if(|sent| sent.ticket == ticket).is_some()
    }

    /// When the one was sent that is not acknowledged.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.sent.map(|sent| sent.at)
    }

    /// The oldest change that is not acknowledged.
    pub(super) fn oldest(&self) -> Option<u64> {
        let sent = self.sent.and_then(|sent| sent.epoch);
        sent.or_else(|| self.pending.iter().find_map(|update| update.epoch))
    }
}
