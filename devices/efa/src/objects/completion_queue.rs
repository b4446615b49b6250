//! Completion queues.

use std::collections::VecDeque;

use peerbar_efa_spec::completion::{ENTRY_BYTES, EXTENDED_ENTRY_BYTES};

use super::error::{ObjectError, ObjectKind, invalid};
use super::event_queue::check_ring;
use super::{Objects, add_user, limits, remove_user};
use crate::memory_bar::{self, Doorbell};

/// The doorbell of a queue that is only polled, until user space writes it. It is read when the queue is full for the first time: by then
/// a program that has consumed anything has written an index other than 0, as a queue has fewer than 2^16 entries.
pub(crate) const NEVER_WRITTEN: u32 = 0;

/// Parameters of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CreateCompletionQueue {
    /// The UAR of its doorbell.
    pub uar: u16,
    /// How many entries it has, a power of two.
    pub entries: u16,
    /// Length of an entry in bytes: 16 or 32.
    pub entry_bytes: usize,
    /// Where the entries are.
    pub address: u64,
    /// The event queue that announces its completions when it is armed.
    pub event_queue: Option<u16>,
    /// Completions of a sender without an address handle have the sender's address. Takes entries of 32 bytes.
    pub with_source_address: bool,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    uar: u16,
    pub(crate) entries: u16,
    pub(crate) entry_bytes: usize,
    pub(crate) address: u64,
    pub(crate) event_queue: Option<u16>,
    pub(crate) with_source_address: bool,
    /// How many entries have been written or are kept, modulo 2^32.
    pub(crate) produced: u32,
    /// How many entries user space has consumed, modulo 2^16, as far as it has been looked at.
    pub(crate) consumed: u16,
    /// User space says how many it has consumed. It cannot where the queue is only polled and in a buffer of its own: Linux' driver maps
    /// no doorbell then (`efa_create_user_cq`). Such a queue is user space's to keep from overflowing.
    pub(crate) is_followed: bool,
    /// Where in BAR2 user space says so, if the queue is only polled.
    pub(crate) polled_doorbell: Option<u64>,
    /// The next completion is announced, for an event of this number.
    pub(crate) armed: Option<u8>,
    /// The number of the last event.
    pub(crate) last_event: Option<u8>,
    /// Entries that are written once bus mastering is on: their queue pairs, addresses and bytes.
    pub(crate) kept: VecDeque<(u16, u64, [u8; EXTENDED_ENTRY_BYTES])>,
    /// It has overflowed, or its memory has failed: there are no completions any more.
    pub(crate) has_failed: bool,
}

impl CompletionQueue {
    /// Where the next entry goes, and its phase.
    pub(crate) fn next_entry(&self) -> (u64, bool) {
        let entries = u32::from(self.entries);
        let slot = u64::from(self.produced % entries);
        let address = self.address + slot * self.entry_bytes as u64;
        (address, (self.produced / entries) % 2 == 0)
    }

    /// How many entries wait for user space, as far as that is known.
    pub(crate) fn outstanding(&self) -> u16 {
        let [low, high, ..] = self.produced.to_le_bytes();
        u16::from_le_bytes([low, high]).wrapping_sub(self.consumed)
    }
}

impl Objects {
    /// Creates a completion queue. Its number, which is also that of its doorbell.
    pub fn create_completion_queue(
        &mut self,
        parameters: CreateCompletionQueue,
    ) -> Result<u16, ObjectError> {
        let CreateCompletionQueue {
            uar,
            entries,
            entry_bytes,
            address,
            event_queue,
            with_source_address,
        } = parameters;
        self.uars.get(uar)?;
        event_queue.map_or(Ok(()), |queue| self.event_queues.get(queue).map(|_| ()))?;
        let is_extended = entry_bytes == EXTENDED_ENTRY_BYTES;
        if !is_extended && (entry_bytes != ENTRY_BYTES || with_source_address) {
            return Err(invalid("length of a completion", entry_bytes as u64));
        }
        if !entries.is_power_of_two() || !(1..=limits::COMPLETION_QUEUE_ENTRIES).contains(&entries)
        {
            return Err(invalid("depth of a completion queue", entries));
        }
        check_ring(
            "address of a completion queue",
            address,
            entries,
            entry_bytes,
        )?;
        let number = self.completion_queues.insert(CompletionQueue {
            uar,
            entries,
            entry_bytes,
            address,
            event_queue,
            with_source_address,
            produced: 0,
            consumed: 0,
            is_followed: event_queue.is_some(),
            polled_doorbell: None,
            armed: None,
            last_event: None,
            kept: VecDeque::new(),
            has_failed: false,
        })?;
        add_user(&mut self.uars, uar)?;
        if event_queue.is_none() {
            let offset = memory_bar::polled_doorbell(uar, number);
            self.completion_queues.get_mut(number)?.polled_doorbell = Some(offset);
            if let Err(error) = self.bar_memory.store(offset, NEVER_WRITTEN) {
                log::error!("doorbell of completion queue {number}: {error}");
            }
        }
        self.doorbells.open(uar, Doorbell::Completion(number));
        Ok(number)
    }

    /// Removes a completion queue. Fails while queue pairs use it.
    pub fn destroy_completion_queue(&mut self, number: u16) -> Result<(), ObjectError> {
        self.completion_queues.get(number)?;
        let mut pairs = self.queue_pairs.iter();
        if pairs
            .any(|(_, pair)| [pair.send_completions, pair.receive_completions].contains(&number))
        {
            return Err(ObjectError::InUse {
                kind: ObjectKind::CompletionQueue,
                number: number.into(),
            });
        }
        self.doorbells.close(Doorbell::Completion(number));
        let queue = self.completion_queues.remove(number)?;
        remove_user(&mut self.uars, queue.uar);
        if let Some(events) = queue.event_queue {
            if let Ok(events) = self.event_queues.get_mut(events) {
                events.waiting.retain(|waiting| *waiting != number);
            }
        }
        Ok(())
    }
}
