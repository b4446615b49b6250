//! A completion queue: its ring, and the entries that are staged, flushed and signalled.

use std::sync::Arc;

use peerbar_dma::{DmaError, Origin, Purpose, Tag};
use peerbar_nvme_spec::completion::{CompletionEntry, Status, StatusField};
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::Iova;
use zerocopy::IntoBytes;

use super::doorbell::{GuestWords, QueueDoorbell, Unreachable};
use super::interrupt::{Next, PendingInterrupt, QueueInterrupts};
use super::late_writes::LateWrites;
use super::permit::{Generation, Permit};
use super::ring::{Ring, distance};
use crate::doorbell_page::DoorbellPage;
use crate::late_data::LateData;

/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: u64 = 16;

/// The most completions that are flushed together.
const MOST_STAGED: usize = 64;

/// A completion queue (NVMe Base 2.0, 3.3.1). Entries are staged one by one and flushed together.
pub(crate) struct CompletionQueue {
    pub(crate) id: u16,
    ring: Ring,
    head: u32,
    /// Entries that the guest has taken since the queue was created.
    taken: u64,
    /// The slot of the next entry.
    tail: u32,
    /// The phase tag of the next entry.
    phase: bool,
    /// Entries that permits own.
    reserved: u32,
    /// The entries just before the tail that are not flushed.
    staged: Vec<CompletionEntry>,
    /// The interrupt vector, if interrupts are enabled.
    vector: Option<u16>,
    pub(super) interrupt: PendingInterrupt,
    pub(super) late_writes: LateWrites,
    pub(crate) doorbell: QueueDoorbell,
    generation: Generation,
}

impl CompletionQueue {
    /// Makes an empty queue.
    pub(crate) fn new(id: u16, vector: Option<u16>, ring: Ring, page: Arc<DoorbellPage>) -> Self {
        Self {
            id,
            ring,
            head: 0,
            taken: 0,
            tail: 0,
            phase: true,
            reserved: 0,
            staged: Vec::with_capacity(MOST_STAGED),
            vector,
            interrupt: PendingInterrupt::default(),
            late_writes: LateWrites::default(),
            doorbell: QueueDoorbell::new(page, Doorbell::CompletionHead(id)),
            generation: Generation::default(),
        }
    }

    /// Ties permits to the thread's generation, so that a reset invalidates them.
    pub(crate) fn join(&mut self, generation: &Generation) {
        self.generation = generation.clone();
    }

    /// Returns the number of entries that can be reserved.
    pub(crate) fn free_entries(&self) -> u32 {
        let free = distance(self.tail + 1, self.head, self.ring.entries);
        free.saturating_sub(self.reserved)
    }

    /// Reserves an entry, if one is free.
    pub(crate) fn reserve(&mut self) -> Option<Permit> {
        (self.free_entries() > 0).then(|| {
            self.reserved += 1;
            Permit::new(&self.generation)
        })
    }

    /// Releases an entry that no completion will use.
    pub(crate) fn release(&mut self, permit: Permit) {
        if self.generation.is_current(&permit) {
            self.reserved = self.reserved.saturating_sub(1);
            permit.expire();
        }
    }

    /// Stages a completion in the entry of its permit, with the phase tag. Returns `true` if the
    /// queue must be flushed before the next completion is staged. A permit of an earlier
    /// generation expires.
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
        if self.tail >= self.ring.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        self.tail == 0 || self.staged.len() >= MOST_STAGED
    }

    /// Keeps data until the guest has taken the completion that was staged last.
    pub(super) fn keep_late(&mut self, data: Box<LateData>) {
        let left = distance(self.head, self.tail, self.ring.entries);
        self.late_writes.keep(self.taken + u64::from(left), data);
    }

    /// Returns `true` if the guest has taken a completion that is followed by data.
    pub(super) fn has_late_due(&self) -> bool {
        self.late_writes.is_due(self.taken)
    }

    /// Takes data whose completion the guest has taken.
    pub(super) fn take_late(&mut self) -> Option<Box<LateData>> {
        self.late_writes.take_due(self.taken)
    }

    /// Writes the staged entries to the queue. The owner must call [`CompletionQueue::signal`]
    /// before it waits, and may wait at most until the deadline of the interrupt that may then be
    /// pending.
    pub(crate) fn flush(
        &mut self,
        interrupts: &QueueInterrupts,
        mut write: impl FnMut(Tag, Iova, &[u8]) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        while let [first, others @ ..] = self.staged.as_slice() {
            let start = self.flushed_tail();
            // Entries beyond the last slot continue at the first.
            let most = usize::try_from(self.ring.entries - start).unwrap_or(usize::MAX);
            let entries = self.staged.get(..most).unwrap_or(&self.staged);
            let origin = match others {
                [] => Origin::command(first.sqid.get(), first.cid.get()),
                _ => Origin::Queue(first.sqid.get()),
            };
            let tag = Tag::new(Purpose::Completion, origin);
            let address = self.ring.address(start, COMPLETION_BYTES);
            write(tag, address, entries.as_bytes())?;
            let count = entries.len();
            let has_failed = |entry: &CompletionEntry| entry.status.status() != Status::SUCCESS;
            let has_failure = entries.iter().any(has_failed);
            let added = u32::try_from(count).unwrap_or(u32::MAX);
            self.interrupt.add(added, has_failure);
            self.staged.drain(..count);
            self.publish(interrupts);
        }
        Ok(())
    }

    /// Reads the head doorbell, if an interrupt waits for the guest's response to the last one.
    pub(crate) fn take_answer(
        &mut self,
        interrupts: &QueueInterrupts,
        memory: &mut impl GuestWords,
    ) {
        if self.interrupt.awaits_answer() {
            self.take_head(interrupts, memory);
        }
    }

    /// Raises the interrupt for the flushed entries, if it is due.
    pub(crate) fn signal(&mut self, interrupts: &QueueInterrupts, next: Next) {
        if let Some(vector) = self.vector {
            interrupts.raise_due(vector, &mut self.interrupt, next);
        }
    }

    /// Raises the interrupt for the flushed entries, due or not.
    pub(crate) fn signal_all(&mut self, interrupts: &QueueInterrupts) {
        if let Some(vector) = self.vector {
            interrupts.raise(vector, &mut self.interrupt);
        }
    }

    /// Reads the head doorbell and frees the entries that the guest has taken. A doorbell that is
    /// not mapped is detected when the queue, or one that is bound to it, is armed.
    pub(crate) fn take_head(&mut self, interrupts: &QueueInterrupts, memory: &mut impl GuestWords) {
        let Ok(value) = self.doorbell.read(memory) else {
            return;
        };
        if self.doorbell.is_new(value) {
            let taken = distance(self.head, value, self.ring.entries);
            if value >= self.ring.entries || taken > self.unread() {
                interrupts.notifier.report_bad_value();
            } else {
                self.head = value;
                self.taken += u64::from(taken);
                self.publish(interrupts);
                self.interrupt.answer(self.unread());
            }
        }
        // Advanced at each move of the head: the head of a full queue is read only after the guest
        // has gone almost once around the queue.
        self.doorbell.advance(memory, self.head, self.ring, 1);
    }

    /// Makes the guest ring when it next takes entries, and frees the entries that it takes during
    /// the call. The loop ends, since the guest cannot take more entries than there are.
    pub(crate) fn arm(
        &mut self,
        interrupts: &QueueInterrupts,
        memory: &mut impl GuestWords,
    ) -> Result<(), Unreachable> {
        while !self.doorbell.arm(memory)? {
            let before = self.head;
            self.take_head(interrupts, memory);
            if self.head == before {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of flushed entries that the guest has not taken.
    pub(crate) fn unread(&self) -> u32 {
        distance(self.head, self.flushed_tail(), self.ring.entries)
    }

    /// Returns the vector, if interrupts are enabled.
    pub(crate) fn vector(&self) -> Option<u16> {
        self.vector
    }

    fn flushed_tail(&self) -> u32 {
        let staged = u32::try_from(self.staged.len()).unwrap_or(0);
        distance(staged, self.tail, self.ring.entries)
    }

    fn publish(&self, interrupts: &QueueInterrupts) {
        let intx = &interrupts.notifier.intx;
        intx.publish(self.id, self.head, self.flushed_tail());
    }
}
