//! What the guest has left to take from each completion queue: the level of the INTx pin.

use crate::queues::distance;
use crate::sync::{AtomicU32, Ordering};

/// Vector of a completion queue that does not interrupt, or does not exist.
const NONE: u32 = u32::MAX;

/// A completion queue as all threads see it; its owner says how far it is.
struct Face {
    vector: AtomicU32,
    entries: AtomicU32,
    /// Head and tail, of 16 bits each, in one word: nobody sees one of them without the other.
    reach: AtomicU32,
}

/// The faces of all completion queues, by number.
pub(crate) struct Pending {
    faces: Vec<Face>,
}

impl Pending {
    /// Room for `queues` completion queues, none of which exists.
    pub(crate) fn new(queues: u16) -> Self {
        Self {
            faces: (0..queues).map(|_| Face::closed()).collect(),
        }
    }

    /// A queue comes, empty.
    pub(crate) fn open(&self, id: u16, entries: u32, vector: Option<u16>) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            let vector = vector.map_or(NONE, u32::from);
            face.entries.store(entries, Ordering::Relaxed);
            face.reach.store(0, Ordering::Relaxed);
            // Who sees the vector does not see the reach of a former queue.
            face.vector.store(vector, Ordering::Release);
        }
    }

    /// A queue goes.
    pub(crate) fn close(&self, id: u16) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            face.vector.store(NONE, Ordering::Relaxed);
        }
    }

    /// A queue's owner has taken over a head or posted up to a tail.
    pub(crate) fn moved(&self, id: u16, head: u32, tail: u32) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            // Whoever raises the pin for an entry has the guest see the entry.
            face.reach.store(head << 16 | tail, Ordering::Release);
        }
    }

    /// Whether a queue that interrupts, by a vector that is not masked, has entries to take. `rung` is the value of a
    /// queue's head doorbell.
    pub(crate) fn level(&self, mask: u32, rung: impl Fn(u16) -> u32) -> bool {
        (0..).zip(&self.faces).any(|(id, face)| {
            let vector = face.vector.load(Ordering::Acquire);
            vector != NONE
                && mask.checked_shr(vector).unwrap_or(0) & 1 == 0
                && face.is_pending(rung(id))
        })
    }
}

impl Face {
    fn closed() -> Self {
        Self {
            vector: AtomicU32::new(NONE),
            entries: AtomicU32::new(0),
            reach: AtomicU32::new(0),
        }
    }

    /// Whether there are entries from the rung head up to the tail. A head that is beyond the tail says that the guest has
    /// taken entries of which their owner has yet to tell, or that it is mistaken: nothing that is known of is left to take.
    fn is_pending(&self, rung: u32) -> bool {
        let entries = self.entries.load(Ordering::Relaxed);
        let reach = self.reach.load(Ordering::Acquire);
        let (head, tail) = (reach >> 16, reach & 0xffff);
        // The words may be of two queues, if another one has come meanwhile.
        let are_of_one_queue = [rung, head, tail].iter().all(|place| *place < entries);
        are_of_one_queue && distance(head, rung, entries) < distance(head, tail, entries)
    }
}
