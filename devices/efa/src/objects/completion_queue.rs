//! Completion queues.

use std::collections::VecDeque;

use peerbar_efa_spec::completion::EXTENDED_ENTRY_BYTES;

use crate::entry::ring_entry;

/// The doorbell of a queue that is only polled, until user space writes it. It is read when the
/// queue is full for the first time. By then a program that has consumed anything has written an
/// index other than 0, since a queue has fewer than 2^16 entries.
pub(crate) const NEVER_WRITTEN: u32 = 0;

/// Parameters of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CreateCompletionQueue {
    /// The UAR of its doorbell.
    pub uar: u16,
    /// Number of entries, a power of two.
    pub entries: u16,
    /// Length of an entry in bytes: 16 or 32.
    pub entry_bytes: usize,
    /// Address of the entries.
    pub address: u64,
    /// The event queue that announces its completions when it is armed.
    pub event_queue: Option<u16>,
    /// `true` if completions from a sender without an address handle contain the sender's address.
    /// Requires entries of 32 bytes.
    pub with_source_address: bool,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub(crate) parameters: CreateCompletionQueue,
    /// Number of entries that have been written or are kept, modulo 2^32.
    pub(crate) produced: u32,
    /// Number of entries that user space has consumed, modulo 2^16, as last read.
    pub(crate) consumed: u16,
    /// `true` if user space tells how many entries it has consumed. It cannot if the queue is only
    /// polled and in a separate buffer: Linux' driver maps no doorbell in that case
    /// (`efa_create_user_cq`). User space itself must keep such a queue from overflowing.
    pub(crate) is_followed: bool,
    /// The offset in BAR2 of the doorbell of a queue that is only polled.
    pub(crate) polled_doorbell: Option<u64>,
    /// Set if the next completion must be announced, by an event of this number.
    pub(crate) armed: Option<u8>,
    /// The number of the last event.
    pub(crate) last_event: Option<u8>,
    /// Entries to be written once bus mastering is on: their queue pairs, addresses and bytes.
    pub(crate) kept: VecDeque<(u16, u64, [u8; EXTENDED_ENTRY_BYTES])>,
    /// `true` if it has overflowed or its memory has failed: it takes no more completions.
    pub(crate) has_failed: bool,
}

impl CompletionQueue {
    /// Returns the address and the phase of the next entry.
    pub(crate) fn next_entry(&self) -> (u64, bool) {
        let ring = &self.parameters;
        ring_entry(ring.address, ring.entries, ring.entry_bytes, self.produced)
    }

    /// Returns the number of entries that wait for user space, as far as it is known.
    pub(crate) fn outstanding(&self) -> u16 {
        let [low, high, ..] = self.produced.to_le_bytes();
        u16::from_le_bytes([low, high]).wrapping_sub(self.consumed)
    }
}
