//! What the guest has left to take from each completion queue: the level of the INTx pin.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::queues::distance;

/// Vector of a completion queue that does not interrupt.
const NONE: u32 = u32::MAX;

/// A completion queue as all threads see it; its owner says how far it is.
#[derive(Default)]
struct Face {
    open: AtomicBool,
    /// The guest has taken entries, or may, of which its owner has yet to tell: it says anew then what is left.
    taken: AtomicBool,
    vector: AtomicU32,
    entries: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
}

/// The faces of all completion queues, by number.
pub(crate) struct Pending {
    faces: Vec<Face>,
}

impl Pending {
    /// Room for `queues` completion queues, none of which exists.
    pub(crate) fn new(queues: u16) -> Self {
        Self {
            faces: (0..queues).map(|_| Face::default()).collect(),
        }
    }

    /// A queue comes, empty.
    pub(crate) fn open(&self, id: u16, entries: u32, vector: Option<u16>) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            let vector = vector.map_or(NONE, u32::from);
            face.vector.store(vector, Ordering::Relaxed);
            face.entries.store(entries, Ordering::Relaxed);
            face.head.store(0, Ordering::Relaxed);
            face.tail.store(0, Ordering::Relaxed);
            face.taken.store(false, Ordering::Relaxed);
            face.open.store(true, Ordering::Release);
        }
    }

    /// A queue goes.
    pub(crate) fn close(&self, id: u16) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            face.open.store(false, Ordering::Release);
        }
    }

    /// Whether the guest has taken entries that a queue's owner has yet to look for. The owner says `false` before it looks.
    pub(crate) fn set_taken(&self, id: u16, taken: bool) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            face.taken.store(taken, Ordering::SeqCst);
        }
    }

    /// A queue's owner has taken over a head or posted up to a tail.
    pub(crate) fn moved(&self, id: u16, head: u32, tail: u32) {
        if let Some(face) = self.faces.get(usize::from(id)) {
            face.head.store(head, Ordering::Release);
            face.tail.store(tail, Ordering::Release);
        }
    }

    /// Whether a queue that interrupts, by a vector that is not masked, has entries to take. `rung` is the value of a
    /// queue's head doorbell, which its owner may not have taken over yet.
    pub(crate) fn level(&self, mask: u32, rung: impl Fn(u16) -> Option<u32>) -> bool {
        (0..).zip(&self.faces).any(|(id, face)| {
            let vector = face.vector.load(Ordering::Relaxed);
            face.open.load(Ordering::Acquire)
                && vector != NONE
                && !face.taken.load(Ordering::SeqCst)
                && mask.checked_shr(vector).unwrap_or(0) & 1 == 0
                && face.is_pending(rung(id))
        })
    }
}

impl Face {
    fn is_pending(&self, rung: Option<u32>) -> bool {
        let entries = self.entries.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        let valid = |rung: &u32| {
            *rung < entries && distance(head, *rung, entries) <= distance(head, tail, entries)
        };
        rung.filter(valid).unwrap_or(head) != tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_follows_entries_vectors_and_mask() {
        let pending = Pending::new(3);
        pending.open(1, 4, Some(1));
        pending.open(2, 4, None);
        assert!(!pending.level(0, |_| None));
        pending.moved(2, 0, 1);
        assert!(!pending.level(0, |_| None), "queue 2 does not interrupt");
        pending.moved(1, 0, 1);
        assert!(pending.level(0, |_| None));
        assert!(!pending.level(0b10, |_| None));
        pending.set_taken(1, true);
        assert!(!pending.level(0, |_| None), "its owner will tell");
        pending.set_taken(1, false);
        assert!(pending.level(0, |_| None));
        pending.close(1);
        assert!(!pending.level(0, |_| None));
    }

    #[test]
    fn a_head_that_was_rung_counts_at_once_unless_it_is_impossible() {
        let pending = Pending::new(1);
        pending.open(0, 4, Some(0));
        pending.moved(0, 3, 1);
        for (rung, level) in [(3, true), (0, true), (1, false), (2, true), (4, true)] {
            assert_eq!(pending.level(0, |_| Some(rung)), level, "{rung}");
        }
    }
}
