//! The send and the receive queue of a queue pair, as rings: the addresses of their entries, and
//! their positions.

use peerbar_efa_spec::work::{LONG_SEND_ENTRY_BYTES, RECEIVE_DESCRIPTOR_BYTES, SEND_ENTRY_BYTES};

use super::error::{ObjectError, invalid};
use crate::limits;
use crate::memory_bar;

/// Length of a descriptor of a receive queue.
const DESCRIPTOR_BYTES: u32 = 16;
const _: () = assert!(DESCRIPTOR_BYTES as usize == RECEIVE_DESCRIPTOR_BYTES);

/// The entries that a driver posts to a send queue, in the memory of BAR2, or to a receive queue,
/// in memory of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// The address of the first entry, or its offset in BAR2.
    start: u64,
    entries: u16,
    pub(crate) entry_bytes: usize,
    /// Numbers of entries that have been taken and posted, modulo 2^16.
    taken: u16,
    posted: u16,
}

/// More entries were posted than a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyPosted;

impl Ring {
    fn new(start: u64, entries: u16, entry_bytes: usize) -> Self {
        Self {
            start,
            entries,
            entry_bytes,
            taken: 0,
            posted: 0,
        }
    }

    /// Makes the send queue of this slot.
    pub(super) fn for_sends(slot: u16, entries: u32, bytes: u32) -> Result<Self, ObjectError> {
        let entry_bytes = bytes.checked_div(entries).unwrap_or(0);
        let possible = [SEND_ENTRY_BYTES, LONG_SEND_ENTRY_BYTES]
            .iter()
            .any(|it| u64::from(entry_bytes) == *it as u64);
        let is_none = entries == 0 && bytes == 0;
        if bytes > limits::SEND_QUEUE_BYTES
            || !(is_none || possible && bytes == entries * entry_bytes)
        {
            return Err(invalid("bytes of a send queue", bytes));
        }
        let entries = ring_length("depth of a send queue", entries)?;
        let start = memory_bar::send_queue(slot);
        Ok(Self::new(start, entries, entry_bytes as usize))
    }

    /// Makes the receive queue at this address.
    pub(super) fn for_receives(address: u64, bytes: u32) -> Result<Self, ObjectError> {
        let descriptors = bytes / DESCRIPTOR_BYTES;
        let is_whole = bytes % DESCRIPTOR_BYTES == 0;
        if !is_whole || descriptors > limits::RECEIVE_QUEUE_DESCRIPTORS {
            return Err(invalid("bytes of a receive queue", bytes));
        }
        let descriptors = ring_length("depth of a receive queue", descriptors)?;
        if descriptors > 0 {
            let parameter = "address of a receive queue";
            check_ring(parameter, address, descriptors, RECEIVE_DESCRIPTOR_BYTES)?;
        }
        Ok(Self::new(address, descriptors, RECEIVE_DESCRIPTOR_BYTES))
    }

    /// Takes this value of the doorbell.
    pub(crate) fn set_posted(&mut self, doorbell: u32) {
        let [low, high, ..] = doorbell.to_le_bytes();
        self.posted = u16::from_le_bytes([low, high]);
    }

    /// Returns the address of the entry that is `ahead` behind the next one, if it is posted. Fails
    /// if more are posted than the ring has: its doorbell is wrong.
    pub(crate) fn peek(&self, ahead: u16) -> Result<Option<u64>, TooManyPosted> {
        let waiting = self.posted.wrapping_sub(self.taken);
        if waiting > self.entries {
            return Err(TooManyPosted);
        }
        let index = self.taken.wrapping_add(ahead) % self.entries.max(1);
        let address = self.start + u64::from(index) * self.entry_bytes as u64;
        Ok((ahead < waiting).then_some(address))
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    /// Takes the next entries.
    pub(crate) fn advance(&mut self, count: u16) {
        self.taken = self.taken.wrapping_add(count);
    }

    /// Returns the number of entries that have been taken, modulo 2^16.
    pub(crate) fn taken(&self) -> u16 {
        self.taken
    }

    /// Discards the posted entries.
    pub(crate) fn discard(&mut self) {
        self.taken = self.posted;
    }

    /// Resets the ring: nothing is posted, and nothing is taken.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.start, self.entries, self.entry_bytes);
    }
}

/// Fails if a ring's address is invalid: its entries may be written word by word, and none may wrap
/// around.
pub(super) fn check_ring(
    parameter: &'static str,
    address: u64,
    entries: u16,
    entry_bytes: usize,
) -> Result<(), ObjectError> {
    let bytes = u64::from(entries) * entry_bytes as u64;
    let fits = address.checked_add(bytes.saturating_sub(1)).is_some();
    if fits && address % entry_bytes as u64 == 0 {
        Ok(())
    } else {
        Err(invalid(parameter, address))
    }
}

/// Returns the length of a ring: a power of two, or 0.
fn ring_length(parameter: &'static str, entries: u32) -> Result<u16, ObjectError> {
    let length = u16::try_from(entries).ok();
    length
        .filter(|length| *length == 0 || length.is_power_of_two())
        .ok_or_else(|| invalid(parameter, entries))
}
