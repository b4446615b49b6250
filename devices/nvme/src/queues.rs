//! Submission and completion queues: where they are, and how full.

use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::completion::{CompletionEntry, StatusField};

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: u64 = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: u64 = 16;

/// The guest rang a doorbell with a value that its queue cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadDoorbell;

/// A submission queue (NVMe Base 2.0, 3.3.1).
#[derive(Clone, Debug)]
pub(crate) struct SubmissionQueue {
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    /// The doorbell's value that was looked at last, good or bad.
    seen: u32,
    /// The completion queue that it is bound to.
    pub(crate) completion: u16,
}

impl SubmissionQueue {
    /// An empty queue of `entries` entries at `base`. Its end does not leave the address space.
    pub(crate) fn new(base: u64, entries: u32, completion: u16) -> Self {
        Self {
            base,
            entries,
            head: 0,
            tail: 0,
            seen: 0,
            completion,
        }
    }

    /// Takes over the value of the tail doorbell.
    pub(crate) fn set_tail(&mut self, value: u32) -> Result<(), BadDoorbell> {
        if value == self.seen {
            return Ok(());
        }
        self.seen = value;
        if value >= self.entries {
            return Err(BadDoorbell);
        }
        self.tail = value;
        Ok(())
    }

    /// Address of the next entry, if there is one.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.head != self.tail).then(|| {
            self.base
                .wrapping_add(u64::from(self.head) * SUBMISSION_BYTES)
        })
    }

    /// The next entry has been fetched.
    pub(crate) fn advance(&mut self) {
        self.head = next_slot(self.head, self.entries);
    }

    /// The head, for completions (NVMe Base 2.0, 3.3.3.2.1, SQHD).
    pub(crate) fn head(&self) -> u16 {
        u16::try_from(self.head).unwrap_or(u16::MAX)
    }
}

/// A completion queue (NVMe Base 2.0, 3.3.1).
#[derive(Clone, Debug)]
pub(crate) struct CompletionQueue {
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    seen: u32,
    phase: bool,
    /// The vector that it interrupts with, if it does.
    pub(crate) vector: Option<u16>,
    /// How many submission queues are bound to it.
    pub(crate) users: u16,
}

impl CompletionQueue {
    /// An empty queue of `entries` entries at `base`. Its end does not leave the address space.
    pub(crate) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            base,
            entries,
            head: 0,
            tail: 0,
            seen: 0,
            phase: true,
            vector,
            users: 0,
        }
    }

    /// Takes over the value of the head doorbell.
    pub(crate) fn set_head(&mut self, value: u32) -> Result<(), BadDoorbell> {
        if value == self.seen {
            return Ok(());
        }
        self.seen = value;
        let distance = |to: u32| (to + self.entries - self.head) % self.entries;
        if value >= self.entries || distance(value) > distance(self.tail) {
            return Err(BadDoorbell);
        }
        self.head = value;
        Ok(())
    }

    /// Whether an entry would overtake the guest.
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many entries would not.
    pub(crate) fn room(&self) -> u32 {
        (self.head + self.entries - 1 - self.tail) % self.entries
    }

    /// Whether the guest has entries to take.
    pub(crate) fn is_pending(&self) -> bool {
        self.head != self.tail
    }

    /// Takes the next slot: its address, and the entry with the right phase.
    pub(crate) fn push(
        &mut self,
        mut entry: CompletionEntry,
        status: Status,
    ) -> (u64, CompletionEntry) {
        entry.status = StatusField::new()
            .with_status(status)
            .with_phase(self.phase);
        let address = self
            .base
            .wrapping_add(u64::from(self.tail) * COMPLETION_BYTES);
        self.tail = next_slot(self.tail, self.entries);
        if self.tail == 0 {
            self.phase = !self.phase;
        }
        (address, entry)
    }
}

fn next_slot(slot: u32, entries: u32) -> u32 {
    if slot + 1 >= entries { 0 } else { slot + 1 }
}

/// All queues that exist, by number; 0 are the admin queues.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) submission: Vec<Option<SubmissionQueue>>,
    pub(crate) completion: Vec<Option<CompletionQueue>>,
}

impl Queues {
    /// Room for `pairs` queue pairs, the admin queues included.
    pub(crate) fn new(pairs: u16) -> Self {
        let pairs = usize::from(pairs);
        Self {
            submission: vec![None; pairs],
            completion: vec![None; pairs],
        }
    }

    /// Forgets every queue.
    pub(crate) fn clear(&mut self) {
        self.submission.fill(None);
        self.completion.fill(None);
    }

    /// The place of submission queue `id`; `None` if there can be none of that number.
    pub(crate) fn submission(&mut self, id: u16) -> Option<&mut Option<SubmissionQueue>> {
        self.submission.get_mut(usize::from(id))
    }

    /// The place of completion queue `id`; `None` if there can be none of that number.
    pub(crate) fn completion(&mut self, id: u16) -> Option<&mut Option<CompletionQueue>> {
        self.completion.get_mut(usize::from(id))
    }

    /// Whether the INTx pin is asserted: a queue that interrupts has entries to take and its vector is not masked.
    pub(crate) fn pin(&self, mask: u32) -> bool {
        self.completion.iter().flatten().any(|queue| {
            let unmasked = queue
                .vector
                .is_some_and(|vector| mask.checked_shr(vector.into()).unwrap_or(0) & 1 == 0);
            unmasked && queue.is_pending()
        })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn push(queue: &mut CompletionQueue) -> (u64, bool) {
        let (address, entry) = queue.push(CompletionEntry::new_zeroed(), Status::SUCCESS);
        (address, entry.status.phase())
    }

    #[test]
    fn entries_are_taken_in_order_and_around_the_end() {
        let mut queue = SubmissionQueue::new(0x1000, 4, 1);
        assert_eq!(queue.next(), None);
        queue.set_tail(3).unwrap();
        for slot in 0..3 {
            assert_eq!(queue.next(), Some(0x1000 + slot * 64));
            queue.advance();
        }
        assert_eq!(queue.next(), None);
        queue.set_tail(1).unwrap();
        assert_eq!(queue.next(), Some(0x10c0));
        queue.advance();
        assert_eq!((queue.next(), queue.head()), (Some(0x1000), 0));
    }

    #[test]
    fn a_bad_tail_is_told_once_and_changes_nothing() {
        let mut queue = SubmissionQueue::new(0x1000, 4, 1);
        queue.set_tail(2).unwrap();
        assert_eq!(queue.set_tail(4), Err(BadDoorbell));
        assert_eq!(queue.set_tail(4), Ok(()));
        assert_eq!(queue.set_tail(u32::MAX), Err(BadDoorbell));
        assert_eq!(queue.next(), Some(0x1000));
    }

    #[test]
    fn the_phase_turns_at_the_end_and_a_full_queue_is_never_overtaken() {
        let mut queue = CompletionQueue::new(0x2000, 3, None);
        assert_eq!(push(&mut queue), (0x2000, true));
        assert!(!queue.is_full());
        assert_eq!(push(&mut queue), (0x2010, true));
        assert!(queue.is_full());
        queue.set_head(2).unwrap();
        assert!(!queue.is_full() && !queue.is_pending());
        assert_eq!(push(&mut queue), (0x2020, true));
        assert_eq!(push(&mut queue), (0x2000, false));
    }

    #[test]
    fn a_head_that_passes_the_tail_is_refused() {
        let mut queue = CompletionQueue::new(0x2000, 4, None);
        push(&mut queue);
        assert_eq!(queue.set_head(2), Err(BadDoorbell));
        assert_eq!(queue.set_head(4), Err(BadDoorbell));
        assert_eq!(queue.set_head(1), Ok(()));
        assert_eq!(queue.set_head(0), Err(BadDoorbell));
    }

    #[test]
    fn the_pin_follows_entries_interrupts_and_mask() {
        let mut queues = Queues::new(3);
        *queues.completion(1).unwrap() = Some(CompletionQueue::new(0x1000, 4, Some(1)));
        *queues.completion(2).unwrap() = Some(CompletionQueue::new(0x2000, 4, None));
        assert!(!queues.pin(0));
        push(queues.completion(2).unwrap().as_mut().unwrap());
        assert!(!queues.pin(0), "queue 2 does not interrupt");
        push(queues.completion(1).unwrap().as_mut().unwrap());
        assert!(queues.pin(0));
        assert!(!queues.pin(0b10));
    }
}
