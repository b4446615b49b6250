//! The level of the INTx pin: asserted while a completion queue has entries that the guest has not
//! taken.

use crate::io_queue::ring::distance;
use crate::sync::{AtomicU32, Ordering};

/// Vector of a completion queue that does not interrupt, or does not exist.
const NONE: u32 = u32::MAX;

/// The state of a completion queue that all threads see. Its owner publishes it.
struct QueueState {
    vector: AtomicU32,
    entries: AtomicU32,
    /// Head and tail, of 16 bits each, in one word, so that no reader sees one of them without the
    /// other.
    head_and_tail: AtomicU32,
}

/// The state of all completion queues, by queue number.
pub(crate) struct Intx {
    queues: Vec<QueueState>,
}

impl Intx {
    /// Makes entries for `queues` completion queues, without any queue.
    pub(crate) fn new(queues: u16) -> Self {
        Self {
            queues: (0..queues).map(|_| QueueState::closed()).collect(),
        }
    }

    /// Opens a queue that is created, empty.
    pub(crate) fn open(&self, id: u16, entries: u32, vector: Option<u16>) {
        if let Some(state) = self.queues.get(usize::from(id)) {
            let vector = vector.map_or(NONE, u32::from);
            state.entries.store(entries, Ordering::Relaxed);
            state.head_and_tail.store(0, Ordering::Relaxed);
            // A reader of the new vector does not see head and tail of the previous queue.
            state.vector.store(vector, Ordering::Release);
        }
    }

    /// Closes a queue that is deleted.
    pub(crate) fn close(&self, id: u16) {
        if let Some(state) = self.queues.get(usize::from(id)) {
            state.vector.store(NONE, Ordering::Relaxed);
        }
    }

    /// Publishes a queue's head, and the tail up to which entries are posted. Only the owner calls
    /// it.
    pub(crate) fn publish(&self, id: u16, head: u32, tail: u32) {
        if let Some(state) = self.queues.get(usize::from(id)) {
            // Release: a guest that is interrupted for an entry sees the entry.
            state
                .head_and_tail
                .store(head << 16 | tail, Ordering::Release);
        }
    }

    /// Returns `true` if a queue with a vector that is not masked has entries to take. `rung`
    /// returns the value of a queue's head doorbell.
    pub(crate) fn level(&self, mask: u32, rung: impl Fn(u16) -> u32) -> bool {
        (0..).zip(&self.queues).any(|(id, state)| {
            let vector = state.vector.load(Ordering::Acquire);
            vector != NONE
                && mask.checked_shr(vector).unwrap_or(0) & 1 == 0
                && state.is_pending(rung(id))
        })
    }
}

impl QueueState {
    fn closed() -> Self {
        Self {
            vector: AtomicU32::new(NONE),
            entries: AtomicU32::new(0),
            head_and_tail: AtomicU32::new(0),
        }
    }

    /// Returns `true` if there are entries from the rung head up to the tail. A rung head beyond
    /// the tail means that the guest has taken entries whose tail is not published yet, or that the
    /// guest is wrong: no published entry is left to take.
    fn is_pending(&self, rung: u32) -> bool {
        let entries = self.entries.load(Ordering::Relaxed);
        let both = self.head_and_tail.load(Ordering::Acquire);
        let (head, tail) = (both >> 16, both & 0xffff);
        // The two words may belong to two queues, if this one has been replaced between the two
        // loads.
        let are_of_one_queue = [rung, head, tail].iter().all(|index| *index < entries);
        are_of_one_queue && distance(head, rung, entries) < distance(head, tail, entries)
    }
}
