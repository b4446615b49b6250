//! Submission and completion queues: where they are, and how full.

use peerbar_dma::Origin;
use peerbar_nvme_spec::completion::{CompletionEntry, Status, StatusField};
use zerocopy::IntoBytes;

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: u64 = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: u64 = 16;

/// How many completions are posted together at most.
const MOST_STAGED: usize = 64;

/// The guest rang a doorbell with a value that its queue cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadDoorbell;

/// The place on the guest's way around a queue that was left behind last.
#[derive(Clone, Debug, Default)]
struct Milestone(u32);

impl Milestone {
    /// The place just behind the guest, which is at `now`, if it has gone so far since the last such place. Until it has gone as
    /// far again, that place is ahead of it by all of the queue but this distance.
    fn pass(&mut self, now: u32, entries: u32, far: u32) -> Option<u32> {
        if distance(self.0, now, entries) < far {
            return None;
        }
        self.0 = now;
        Some((now + entries - 1) % entries)
    }
}

/// A submission queue (NVMe Base 2.0, 3.3.1).
#[derive(Clone, Debug)]
pub(crate) struct SubmissionQueue {
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    /// The doorbell's value that was looked at last, good or bad.
    seen: u32,
    milestone: Milestone,
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
            milestone: Milestone::default(),
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

    /// The value of the tail doorbell that was looked at last.
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    /// A value that the tail doorbell has passed, if it is time to leave one behind: twice a turn, which lets the guest go half
    /// a queue in one step.
    pub(crate) fn passed(&mut self) -> Option<u32> {
        let half = self.entries.div_ceil(2);
        self.milestone.pass(self.tail, self.entries, half)
    }

    /// Where the next entry to fetch is, or will be.
    pub(crate) fn next_address(&self) -> u64 {
        let skip = u64::from(self.head) * SUBMISSION_BYTES;
        self.base.wrapping_add(skip)
    }

    /// Whether there are entries to fetch.
    pub(crate) fn has_entries(&self) -> bool {
        self.head != self.tail
    }

    /// How many entries there are to fetch if the tail doorbell has this value.
    pub(crate) fn waiting(&self, tail: u32) -> u32 {
        distance(self.head, tail.min(self.entries), self.entries)
    }

    /// Address and number of the next entries that lie one after the other, up to `most`, if there are any.
    pub(crate) fn next(&self, most: usize) -> Option<(u64, usize)> {
        let end = if self.head <= self.tail {
            self.tail
        } else {
            self.entries
        };
        let count = usize::try_from(end - self.head).unwrap_or(most).min(most);
        (count > 0).then(|| (self.next_address(), count))
    }

    /// So many of the next entries have been fetched.
    pub(crate) fn advance(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(0);
        self.head = self.head.saturating_add(count) % self.entries.max(1);
    }

    /// The head, for completions (NVMe Base 2.0, 3.3.3.2.1, SQHD).
    pub(crate) fn head(&self) -> u16 {
        u16::try_from(self.head).unwrap_or(u16::MAX)
    }
}

/// A completion queue (NVMe Base 2.0, 3.3.1).
///
/// Entries are staged one by one and posted together.
#[derive(Clone, Debug)]
pub(crate) struct CompletionQueue {
    base: u64,
    entries: u32,
    head: u32,
    /// Where the next entry goes.
    tail: u32,
    seen: u32,
    milestone: Milestone,
    phase: bool,
    /// How many entries commands that are under way will have.
    promised: u32,
    /// The entries just before the tail that are yet to be posted; they lie one after the other.
    staged: Vec<CompletionEntry>,
    /// How many have been posted since the guest was last interrupted for them, and whether any of them tells of a failure.
    news: (u32, bool),
    /// The vector that it interrupts with, if it does.
    pub(crate) vector: Option<u16>,
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
            milestone: Milestone::default(),
            phase: true,
            promised: 0,
            staged: Vec::with_capacity(MOST_STAGED),
            news: (0, false),
            vector,
        }
    }

    /// Takes over the value of the head doorbell.
    pub(crate) fn set_head(&mut self, value: u32) -> Result<(), BadDoorbell> {
        if value == self.seen {
            return Ok(());
        }
        self.seen = value;
        let distance = |to| distance(self.head, to, self.entries);
        if value >= self.entries || distance(value) > distance(self.posted_tail()) {
            return Err(BadDoorbell);
        }
        self.head = value;
        Ok(())
    }

    /// How many entries would not overtake the guest, beside those that are promised.
    pub(crate) fn room(&self) -> usize {
        let room = (self.head + self.entries - 1 - self.tail) % self.entries;
        usize::try_from(room.saturating_sub(self.promised)).unwrap_or(usize::MAX)
    }

    /// Keeps room for an entry that comes later.
    pub(crate) fn promise(&mut self) {
        self.promised += 1;
    }

    /// Whether entries come later for which room is kept.
    pub(crate) fn has_promised(&self) -> bool {
        self.promised > 0
    }

    /// An entry for which room was kept comes now, or never.
    pub(crate) fn redeem(&mut self) {
        self.promised = self.promised.saturating_sub(1);
    }

    /// How many entries the guest has left to take.
    pub(crate) fn left(&self) -> u32 {
        distance(self.head, self.posted_tail(), self.entries)
    }

    /// How far the guest has taken entries.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// A value that the head doorbell has passed, if it is time to leave one behind: whenever it has moved, as it is looked at
    /// when there is no room left, when the guest has gone almost once around.
    pub(crate) fn passed(&mut self) -> Option<u32> {
        self.milestone.pass(self.head, self.entries, 1)
    }

    /// How far entries have been posted.
    pub(crate) fn posted_tail(&self) -> u32 {
        let staged = u32::try_from(self.staged.len()).unwrap_or(0);
        (self.tail + self.entries - staged) % self.entries
    }

    /// Adds an entry with the right phase; there is room for it. Whether it must be posted before the next one is added.
    pub(crate) fn stage(&mut self, mut entry: CompletionEntry, status: Status) -> bool {
        entry.status = StatusField::new()
            .with_status(status)
            .with_phase(self.phase);
        self.staged.push(entry);
        self.tail += 1;
        if self.tail >= self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        self.tail == 0 || self.staged.len() >= MOST_STAGED
    }

    /// Address and bytes of the entries to post, if there are any.
    pub(crate) fn staged(&self) -> Option<(u64, &[u8])> {
        let first = u64::from(self.posted_tail()) * COMPLETION_BYTES;
        let bytes = self.staged.as_bytes();
        (!bytes.is_empty()).then(|| (self.base.wrapping_add(first), bytes))
    }

    /// Whose completions they are: the command's, if there is one.
    pub(crate) fn origin(&self) -> Origin {
        match self.staged.as_slice() {
            [entry] => Origin::command(entry.sqid.get(), entry.cid.get()),
            [entry, ..] => Origin::Queue(entry.sqid.get()),
            [] => Origin::Device,
        }
    }

    /// They have been written.
    pub(crate) fn posted(&mut self) {
        let (entries, failed) = &mut self.news;
        let more = u32::try_from(self.staged.len()).unwrap_or(u32::MAX);
        *entries = entries.saturating_add(more);
        let has_failed = |entry: &CompletionEntry| entry.status.status() != Status::SUCCESS;
        *failed |= self.staged.iter().any(has_failed);
        self.staged.clear();
    }

    /// How many have been posted since the last time, and whether any of them tells of a failure.
    pub(crate) fn take_news(&mut self) -> (u32, bool) {
        std::mem::take(&mut self.news)
    }
}

/// How far it is from one slot of a ring of `entries` to another.
pub(crate) fn distance(from: u32, to: u32, entries: u32) -> u32 {
    (to + entries - from) % entries.max(1)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// Stages and posts an entry: where, and its phase.
    fn push(queue: &mut CompletionQueue) -> (u64, bool) {
        queue.stage(CompletionEntry::new_zeroed(), Status::SUCCESS);
        let (address, bytes) = queue.staged().unwrap();
        let pushed = (address, bytes[14] & 1 == 1);
        queue.posted();
        pushed
    }

    #[test]
    fn entries_are_taken_in_order_and_around_the_end() {
        let mut queue = SubmissionQueue::new(0x1000, 4, 1);
        assert_eq!((queue.next(8), queue.next_address()), (None, 0x1000));
        queue.set_tail(3).unwrap();
        assert_eq!(queue.next(2), Some((0x1000, 2)));
        queue.advance(2);
        assert_eq!(queue.next(8), Some((0x1080, 1)));
        queue.advance(1);
        assert_eq!(queue.next_address(), 0x10c0);
        assert_eq!(queue.next(8), None);
        queue.set_tail(2).unwrap();
        assert_eq!(queue.next(8), Some((0x10c0, 1)), "up to the end");
        queue.advance(1);
        assert_eq!((queue.next(8), queue.head()), (Some((0x1000, 2)), 0));
    }

    #[test]
    fn a_bad_tail_is_told_once_and_changes_nothing() {
        let mut queue = SubmissionQueue::new(0x1000, 4, 1);
        queue.set_tail(2).unwrap();
        assert_eq!(queue.set_tail(4), Err(BadDoorbell));
        assert_eq!(queue.set_tail(4), Ok(()));
        assert_eq!(queue.set_tail(u32::MAX), Err(BadDoorbell));
        assert_eq!(queue.next(8), Some((0x1000, 2)));
    }

    #[test]
    fn the_phase_turns_at_the_end_and_a_full_queue_is_never_overtaken() {
        let mut queue = CompletionQueue::new(0x2000, 3, None);
        assert_eq!(push(&mut queue), (0x2000, true));
        assert_eq!(queue.room(), 1);
        assert_eq!(push(&mut queue), (0x2010, true));
        assert_eq!(queue.room(), 0);
        queue.set_head(2).unwrap();
        assert_eq!(queue.room(), 2);
        assert_eq!(push(&mut queue), (0x2020, true));
        assert_eq!(push(&mut queue), (0x2000, false));
    }

    #[test]
    fn entries_are_posted_together_but_not_around_the_end() {
        let mut queue = CompletionQueue::new(0x2000, 3, None);
        let entry = CompletionEntry::new_zeroed();
        assert!(!queue.stage(entry, Status::SUCCESS));
        assert!(!queue.stage(entry, Status::SUCCESS));
        assert_eq!(queue.posted_tail(), 0, "nobody sees them yet");
        let staged = |queue: &CompletionQueue| queue.staged().map(|(at, bytes)| (at, bytes.len()));
        assert_eq!(staged(&queue), Some((0x2000, 32)));
        queue.posted();
        assert_eq!((staged(&queue), queue.posted_tail()), (None, 2));
        queue.set_head(2).unwrap();
        assert!(queue.stage(entry, Status::SUCCESS), "the last slot");
        assert_eq!(staged(&queue), Some((0x2020, 16)));
    }

    #[test]
    fn a_head_that_passes_what_is_posted_is_refused() {
        let mut queue = CompletionQueue::new(0x2000, 4, None);
        push(&mut queue);
        queue.stage(CompletionEntry::new_zeroed(), Status::SUCCESS);
        assert_eq!(queue.set_head(2), Err(BadDoorbell));
        assert_eq!(queue.set_head(4), Err(BadDoorbell));
        assert_eq!(queue.set_head(1), Ok(()));
        assert_eq!(queue.set_head(0), Err(BadDoorbell));
    }
}
