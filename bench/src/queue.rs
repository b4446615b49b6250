//! A submission queue and its completion queue, seen from the host.

use std::sync::Arc;

use peerbar_nvme_spec::command::SubmissionEntry;
use zerocopy::IntoBytes;

use crate::Error;
use crate::doorbell::{Doorbell, ring};
use crate::memory::{Memory, Pages};

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: usize = 16;
/// Where in a completion its last 8 bytes are: SQHD, SQID, CID and status (NVMe Base 2.0, 3.3.3.2).
pub(crate) const COMPLETION_TAIL: usize = 8;

/// Where a pair of queues lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Offset of the submission queue.
    pub(crate) submission: usize,
    /// Offset of the completion queue.
    pub(crate) completion: usize,
    /// Entries of each.
    pub(crate) entries: u16,
}

impl Place {
    /// Takes room for queues of `entries` entries.
    pub(crate) fn take(pages: &Pages, entries: u16) -> Result<Self, Error> {
        Ok(Self {
            submission: pages.take(usize::from(entries) * SUBMISSION_BYTES)?,
            completion: pages.take(usize::from(entries) * COMPLETION_BYTES)?,
            entries,
        })
    }

    /// The index after `index`.
    pub(crate) fn after(&self, index: u16) -> u16 {
        let next = index + 1;
        if next == self.entries { 0 } else { next }
    }
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) cid: u16,
    /// Without the phase; 0 is success.
    pub(crate) status: u16,
}

/// A pair of queues.
pub(crate) struct QueuePair {
    pub(crate) id: u16,
    memory: Arc<Memory>,
    place: Place,
    tail: u16,
    head: u16,
    /// The phase of completions that are new.
    phase: bool,
    /// Those of tail and head.
    bells: [Doorbell; 2],
}

impl QueuePair {
    pub(crate) fn new(id: u16, memory: Arc<Memory>, place: Place, bells: [Doorbell; 2]) -> Self {
        Self {
            id,
            memory,
            place,
            tail: 0,
            head: 0,
            phase: true,
            bells,
        }
    }

    /// Puts a command into the next entry, unseen until [`Self::ring`]. The caller has fewer commands outstanding than
    /// there are entries.
    pub(crate) fn push(&mut self, entry: &SubmissionEntry) -> Result<(), Error> {
        let offset = self.place.submission + usize::from(self.tail) * SUBMISSION_BYTES;
        let slot = self.memory.slice(offset, SUBMISSION_BYTES)?;
        slot.copy_from(entry.as_bytes());
        self.tail = self.place.after(self.tail);
        Ok(())
    }

    /// Has the controller see what was pushed, and gives the entries of the completions taken so far back to it.
    pub(crate) fn ring(&mut self) -> Result<(), Error> {
        ring(&mut self.bells, [self.tail, self.head])
    }

    /// Takes the next completion, if there is one.
    pub(crate) fn pop(&mut self) -> Result<Option<Completion>, Error> {
        let offset = self.place.completion + usize::from(self.head) * COMPLETION_BYTES;
        let [_, _, _, _, cid0, cid1, status0, status1] =
            self.memory.load64(offset + COMPLETION_TAIL)?.to_le_bytes();
        let status = u16::from_le_bytes([status0, status1]);
        if (status & 1 == 1) != self.phase {
            return Ok(None);
        }
        self.head = self.place.after(self.head);
        self.phase ^= self.head == 0;
        Ok(Some(Completion {
            cid: u16::from_le_bytes([cid0, cid1]),
            status: status >> 1,
        }))
    }
}
