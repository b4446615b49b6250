//! A completion queue: its ring, and the permits by which commands own its entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use peerbar_dma::{DmaError, Origin, Purpose, Tag};
use peerbar_nvme_spec::completion::{CompletionEntry, Status, StatusField};
use peerbar_nvme_spec::registers::Doorbell;
use zerocopy::IntoBytes;

use super::doorbell::{GuestWords, QueueDoorbell, Unreachable};
use super::interrupt::{Posted, QueueInterrupts};
use crate::doorbell_page::DoorbellPage;

/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: u64 = 16;

/// At most as many completions are flushed together.
const MOST_STAGED: usize = 64;

/// Counts the resets of one thread's queues. A permit of an earlier generation has expired.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generation(Arc<AtomicU64>);

impl Generation {
    fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Expires every permit.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a permit has not expired.
    pub(crate) fn is_current(&self, permit: &Permit) -> bool {
        permit.generation == self.number()
    }
}

/// A reserved entry of a completion queue. A command owns one from before it is fetched until its completion is staged.
///
/// A permit is given back by [`CompletionQueue::stage`] or [`CompletionQueue::release`]. Only an expired one may be dropped.
#[derive(Debug)]
#[must_use = "an entry stays reserved until its permit is given back"]
pub(crate) struct Permit {
    generation: u64,
    #[cfg(debug_assertions)]
    current: Generation,
}

impl Permit {
    /// No generation has this number.
    const USED: u64 = u64::MAX;

    pub(crate) fn new(current: &Generation) -> Self {
        Self {
            generation: current.number(),
            #[cfg(debug_assertions)]
            current: current.clone(),
        }
    }

    /// The queue of this permit has been deleted, and its entries with it.
    pub(crate) fn expire(mut self) {
        self.generation = Self::USED;
    }
}

#[cfg(debug_assertions)]
impl Drop for Permit {
    fn drop(&mut self) {
        debug_assert!(
            !self.current.is_current(self) || std::thread::panicking(),
            "a command was dropped without a completion"
        );
    }
}

/// A completion queue (NVMe Base 2.0, 3.3.1). Entries are staged one by one and flushed together.
pub(crate) struct CompletionQueue {
    pub(crate) id: u16,
    base: u64,
    entries: u32,
    head: u32,
    /// The slot of the next entry.
    tail: u32,
    /// The phase tag of the next entry.
    phase: bool,
    /// How many entries are owned by permits.
    reserved: u32,
    /// The entries just before the tail that are not flushed. They lie one after the other.
    staged: Vec<CompletionEntry>,
    /// How many entries were flushed since the last interrupt, and whether any of them reports a failure.
    unsignalled: (u32, bool),
    /// The interrupt vector, if interrupts are enabled.
    vector: Option<u16>,
    pub(crate) doorbell: QueueDoorbell,
    generation: Generation,
}

impl CompletionQueue {
    /// An empty queue of `entries` entries at `base`. Its end does not leave the address space.
    pub(crate) fn new(
        (id, vector): (u16, Option<u16>),
        (base, entries): (u64, u32),
        page: Arc<DoorbellPage>,
    ) -> Self {
        Self {
            id,
            base,
            entries,
            head: 0,
            tail: 0,
            phase: true,
            reserved: 0,
            staged: Vec::with_capacity(MOST_STAGED),
            unsignalled: (0, false),
            vector,
            doorbell: QueueDoorbell::new(page, Doorbell::CompletionHead(id)),
            generation: Generation::default(),
        }
    }

    /// Has permits expire with a thread's generation.
    pub(crate) fn join(&mut self, generation: &Generation) {
        self.generation = generation.clone();
    }

    /// How many entries can be reserved.
    pub(crate) fn free_entries(&self) -> u32 {
        let free = distance(self.tail + 1, self.head, self.entries);
        free.saturating_sub(self.reserved)
    }

    /// Reserves an entry, if one is free.
    pub(crate) fn reserve(&mut self) -> Option<Permit> {
        (self.free_entries() > 0).then(|| {
            self.reserved += 1;
            Permit::new(&self.generation)
        })
    }

    /// Whether commands own entries.
    pub(crate) fn has_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// Gives an entry back that no completion comes for.
    pub(crate) fn release(&mut self, permit: Permit) {
        if self.generation.is_current(&permit) {
            self.reserved = self.reserved.saturating_sub(1);
            permit.expire();
        }
    }

    /// Stages a completion in the entry of its permit, with the phase tag. Returns whether the queue must be flushed before the
    /// next one is staged. A late permit expires.
    pub(crate) fn stage(
        &mut self,
        permit: Permit,
        mut entry: CompletionEntry,
        status: Status,
    ) -> bool {
        if !self.generation.is_current(&permit) {
            return false;
        }
        self.release(permit);
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

    /// Writes the staged entries to the queue. [`CompletionQueue::signal`] is to follow before the owner waits for anything.
    pub(crate) fn flush(
        &mut self,
        interrupts: &mut QueueInterrupts,
        write: impl FnOnce(Tag, u64, &[u8]) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let first = u64::from(self.flushed_tail()) * COMPLETION_BYTES;
        let origin = match self.staged.as_slice() {
            [] => return Ok(()),
            [entry] => Origin::command(entry.sqid.get(), entry.cid.get()),
            [entry, ..] => Origin::Queue(entry.sqid.get()),
        };
        let tag = Tag::new(Purpose::Completion, origin);
        write(tag, self.base.wrapping_add(first), self.staged.as_bytes())?;
        let (entries, failed) = &mut self.unsignalled;
        let count = u32::try_from(self.staged.len()).unwrap_or(u32::MAX);
        *entries = entries.saturating_add(count);
        let has_failed = |entry: &CompletionEntry| entry.status.status() != Status::SUCCESS;
        *failed |= self.staged.iter().any(has_failed);
        self.staged.clear();
        interrupts.flushed(self.vector, count);
        self.publish(interrupts);
        Ok(())
    }

    /// QueueInterrupts for the entries that were flushed since the last time, at once or later. `more`: further ones are flushed in
    /// the next round.
    pub(crate) fn signal(
        &mut self,
        interrupts: &mut QueueInterrupts,
        memory: &mut impl GuestWords,
        more: bool,
    ) {
        let (entries, failed) = std::mem::take(&mut self.unsignalled);
        let vector = self.vector.filter(|_| entries > 0);
        // A guest that has taken entries since its last interrupt needs the next one at once.
        if more && vector.is_some_and(|vector| interrupts.is_unanswered(vector)) {
            // A doorbell that is lost is found out before the worker blocks.
            let _ = self.take_head(interrupts, memory);
        }
        memory.release();
        if let Some(vector) = vector {
            interrupts.signal(Posted {
                vector,
                entries,
                failed,
                more,
            });
        }
    }

    /// Reads the head doorbell and frees the entries that the guest has taken.
    pub(crate) fn take_head(
        &mut self,
        interrupts: &mut QueueInterrupts,
        memory: &mut impl GuestWords,
    ) -> Result<(), Unreachable> {
        let value = self.doorbell.read(memory)?;
        if self.doorbell.is_new(value) {
            let taken = distance(self.head, value, self.entries);
            if value >= self.entries || taken > self.unread() {
                interrupts.notifier.report_bad_value();
            } else {
                self.head = value;
                self.publish(interrupts);
                interrupts.taken(self.vector, taken);
            }
        }
        // At each move: a full queue is read only after the guest has gone almost once around it.
        self.doorbell.advance(memory, self.head, (self.entries, 1));
        Ok(())
    }

    /// Has the guest ring when it next takes entries, and frees those that it has taken meanwhile. It ends, since the guest
    /// cannot take more than there are.
    pub(crate) fn arm(
        &mut self,
        interrupts: &mut QueueInterrupts,
        memory: &mut impl GuestWords,
    ) -> Result<(), Unreachable> {
        while !self.doorbell.arm(memory)? {
            let before = self.head;
            self.take_head(interrupts, memory)?;
            if self.head == before {
                break;
            }
        }
        Ok(())
    }

    /// How many entries the guest has left to take.
    pub(crate) fn unread(&self) -> u32 {
        distance(self.head, self.flushed_tail(), self.entries)
    }

    /// The vector, if interrupts are enabled.
    pub(crate) fn vector(&self) -> Option<u16> {
        self.vector
    }

    fn flushed_tail(&self) -> u32 {
        let staged = u32::try_from(self.staged.len()).unwrap_or(0);
        (self.tail + self.entries - staged) % self.entries.max(1)
    }

    fn publish(&self, interrupts: &QueueInterrupts) {
        let intx = &interrupts.notifier.intx;
        intx.publish(self.id, self.head, self.flushed_tail());
    }
}

/// How far it is from one slot of a ring of `entries` to another.
pub(crate) fn distance(from: u32, to: u32, entries: u32) -> u32 {
    (to + entries - from) % entries.max(1)
}
