//! A submission queue: its ring, and the commands that are fetched from it.

use std::sync::Arc;

use peerbar_dma::{DmaError, DoorbellEvent, Origin, Purpose, Session, Tag};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::CompletionEntry;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::Iova;
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use super::completion::CompletionQueue;
use super::doorbell::{GuestWords, QueueDoorbell, Unreachable};
use super::permit::Permit;
use super::ring::{Ring, distance};
use crate::doorbell_page::DoorbellPage;
use crate::notifier::Notifier;

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: u64 = 64;

/// A command that was fetched. It owns a completion entry.
pub(crate) struct Command<'a> {
    pub(crate) entry: &'a SubmissionEntry,
    /// The command that follows it, if that was fetched, too.
    pub(crate) next: Option<&'a SubmissionEntry>,
    pub(crate) permit: Permit,
}

/// Commands that were fetched together. The batch is empty except while they are executed.
pub(crate) struct Batch {
    entries: Vec<SubmissionEntry>,
    permits: Vec<Permit>,
}

impl Batch {
    /// Makes a batch of up to `most` commands.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            entries: vec![SubmissionEntry::new_zeroed(); most],
            permits: Vec::with_capacity(most),
        }
    }

    /// Returns the number of commands.
    pub(crate) fn len(&self) -> usize {
        self.permits.len()
    }

    /// Takes the commands out, in order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Command<'_>> {
        let count = self.permits.len();
        let mut entries = self.entries.get(..count).unwrap_or_default().iter();
        let entries = std::iter::from_fn(move || {
            let entry = entries.next()?;
            Some((entry, entries.as_slice().first()))
        });
        let commands = entries.zip(self.permits.drain(..));
        commands.map(|((entry, next), permit)| Command {
            entry,
            next,
            permit,
        })
    }
}

/// A submission queue (NVMe Base 2.0, 3.3.1).
pub(crate) struct SubmissionQueue {
    pub(crate) id: u16,
    ring: Ring,
    head: u32,
    tail: u32,
    /// Commands that have been fetched and are not complete.
    pub(crate) outstanding: usize,
    /// The queue is being deleted: no more commands are fetched.
    pub(crate) is_closing: bool,
    pub(crate) doorbell: QueueDoorbell,
}

impl SubmissionQueue {
    /// Makes an empty queue.
    pub(crate) fn new(id: u16, ring: Ring, page: Arc<DoorbellPage>) -> Self {
        Self {
            id,
            ring,
            head: 0,
            tail: 0,
            outstanding: 0,
            is_closing: false,
            doorbell: QueueDoorbell::new(page, Doorbell::SubmissionTail(id)),
        }
    }

    /// Reads the tail doorbell, and records a new value. The commands' completions are signalled by
    /// `vector`.
    pub(crate) fn take_tail(
        &mut self,
        session: &mut Session,
        notifier: &Notifier,
        vector: Option<u16>,
    ) -> Result<(), Unreachable> {
        let before = self.tail;
        let value = self.doorbell.read(session);
        // The guest's processor writes the entry just before the doorbell, so it may still be in
        // that processor's cache.
        session.prefetch(Purpose::Command, self.next_address(), SUBMISSION_BYTES);
        if !self.set_tail(value?, session) {
            notifier.report_bad_value();
        }
        if self.tail != before {
            session.requester().ledger().doorbell(|| DoorbellEvent {
                queue: self.id,
                tail: self.tail,
                added: distance(before, self.tail, self.ring.entries),
                waiting: distance(self.head, self.tail, self.ring.entries),
                vector,
            });
        }
        Ok(())
    }

    /// Accepts a value of the tail doorbell. Returns `true` if the value is valid for the queue.
    pub(crate) fn set_tail(&mut self, value: u32, memory: &mut impl GuestWords) -> bool {
        let is_new = self.doorbell.is_new(value);
        let is_valid = !is_new || value < self.ring.entries;
        if is_new && is_valid {
            self.tail = value;
        }
        // Twice in a turn of the ring, so that a guest may submit half a queue at once.
        let half = self.ring.entries.div_ceil(2);
        self.doorbell.advance(memory, self.tail, self.ring, half);
        is_valid
    }

    /// Returns the address of the next entry to fetch.
    pub(super) fn next_address(&self) -> Iova {
        self.ring.address(self.head, SUBMISSION_BYTES)
    }

    /// Returns `true` if there are entries to fetch.
    pub(crate) fn has_entries(&self) -> bool {
        self.head != self.tail
    }

    /// Reserves a completion entry for each of up to `most` commands, and fetches these into an
    /// empty batch.
    pub(crate) fn fetch(
        &mut self,
        completions: &mut CompletionQueue,
        batch: &mut Batch,
        most: usize,
        read: impl FnOnce(Tag, Iova, &mut [u8]) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let end = if self.head <= self.tail {
            self.tail
        } else {
            self.ring.entries
        };
        let there = usize::try_from(end - self.head).unwrap_or(usize::MAX);
        let most = there.min(most).min(batch.entries.len());
        let permits = std::iter::from_fn(|| completions.reserve());
        batch.permits.extend(permits.take(most));
        let count = batch.permits.len();
        let entries = batch.entries.get_mut(..count).unwrap_or_default();
        if count == 0 {
            return Ok(());
        }
        let tag = Tag::new(Purpose::Command, Origin::Queue(self.id));
        let fetched = read(tag, self.next_address(), entries.as_mut_bytes());
        if fetched.is_err() {
            for permit in batch.permits.drain(..) {
                completions.release(permit);
            }
            return fetched;
        }
        let count = u32::try_from(count).unwrap_or(0);
        self.head = (self.head + count) % self.ring.entries.max(1);
        self.outstanding += batch.permits.len();
        Ok(())
    }

    /// Ends a command of this queue. Returns a completion entry with the state of the queue (NVMe
    /// Base 2.0, 3.3.3.2).
    pub(crate) fn end(&mut self, cid: U16) -> CompletionEntry {
        self.outstanding = self.outstanding.saturating_sub(1);
        let mut entry = CompletionEntry::new_zeroed();
        entry.sqhd = U16::new(u16::try_from(self.head).unwrap_or(u16::MAX));
        entry.sqid = U16::new(self.id);
        entry.cid = cid;
        entry
    }
}
