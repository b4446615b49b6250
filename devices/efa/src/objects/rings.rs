//! The send and the receive queue of a queue pair, as rings: the addresses of their entries, and
//! their positions.

use peerbar_efa_spec::work::{LONG_SEND_ENTRY_BYTES, RECEIVE_DESCRIPTOR_BYTES, SEND_ENTRY_BYTES};

use super::error::{ObjectError, invalid};
use crate::limits;
use crate::memory_bar;

/// Length of a descriptor of a receive queue.
const DESCRIPTOR_BYTES: u32 = 16;
const _: () = assert!(DESCRIPTOR_BYTES as usize == RECEIVE_DESCRIPTOR_BYTES);

/// The send queue of a queue pair, in the memory of BAR2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRing {
    /// Its offset in the BAR.
    offset: u64,
    entries: u16,
    pub(crate) entry_bytes: usize,
    position: Position,
}

/// The receive queue of a queue pair, in memory of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRing {
    address: u64,
    descriptors: u16,
    position: Position,
}

/// The position of a ring, in entries modulo 2^16.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    taken: u16,
    posted: u16,
}

impl Position {
    /// Returns the number of waiting entries, or `None` if there are more than the ring has: its
    /// doorbell is wrong.
    fn waiting(self, entries: u16) -> Option<u16> {
        Some(self.posted.wrapping_sub(self.taken)).filter(|waiting| *waiting <= entries)
    }
}

/// More entries were posted than a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyPosted;

impl SendRing {
    pub(super) fn new(slot: u16, entries: u32, bytes: u32) -> Result<Self, ObjectError> {
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
        Ok(Self {
            offset: memory_bar::send_queue(slot),
            entries: ring_length("depth of a send queue", entries)?,
            entry_bytes: entry_bytes as usize,
            position: Position::default(),
        })
    }

    /// Takes this value of the doorbell.
    pub(crate) fn set_posted(&mut self, doorbell: u32) {
        self.position.posted = low_half(doorbell);
    }

    /// Returns the offset in BAR2 of the next entry, if one is posted.
    pub(crate) fn next(&self) -> Result<Option<u64>, TooManyPosted> {
        let waiting = self.position.waiting(self.entries).ok_or(TooManyPosted)?;
        let slot = self.position.taken % self.entries.max(1);
        let offset = self.offset + u64::from(slot) * self.entry_bytes as u64;
        Ok((waiting > 0).then_some(offset))
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    /// Takes the next entry.
    pub(crate) fn advance(&mut self) {
        self.position.taken = self.position.taken.wrapping_add(1);
    }

    /// Returns the number of entries that have been taken, modulo 2^16.
    pub(crate) fn taken(&self) -> u16 {
        self.position.taken
    }

    /// Discards the posted entries.
    pub(crate) fn discard(&mut self) {
        self.position.taken = self.position.posted;
    }

    /// Resets the ring: nothing is posted, and nothing is taken.
    pub(super) fn reset(&mut self) {
        self.position = Position::default();
    }
}

impl ReceiveRing {
    pub(super) fn new(address: u64, bytes: u32) -> Result<Self, ObjectError> {
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
        Ok(Self {
            address,
            descriptors,
            position: Position::default(),
        })
    }

    /// Takes this value of the doorbell.
    pub(crate) fn set_posted(&mut self, doorbell: u32) {
        self.position.posted = low_half(doorbell);
    }

    /// Returns the address of the descriptor that is `ahead` behind the next one, if it is posted.
    pub(crate) fn peek(&self, ahead: u16) -> Result<Option<u64>, TooManyPosted> {
        let waiting = self.position.waiting(self.descriptors);
        let waiting = waiting.ok_or(TooManyPosted)?;
        let slot = self.position.taken.wrapping_add(ahead) % self.descriptors.max(1);
        let address = self.address + u64::from(slot) * RECEIVE_DESCRIPTOR_BYTES as u64;
        Ok((ahead < waiting).then_some(address))
    }

    /// Takes the next descriptors.
    pub(crate) fn advance(&mut self, count: u16) {
        self.position.taken = self.position.taken.wrapping_add(count);
    }

    /// Discards the posted descriptors.
    pub(crate) fn discard(&mut self) {
        self.position.taken = self.position.posted;
    }

    /// Resets the ring: nothing is posted, and nothing is taken.
    pub(super) fn reset(&mut self) {
        self.position = Position::default();
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

fn low_half(doorbell: u32) -> u16 {
    let [low, high, ..] = doorbell.to_le_bytes();
    u16::from_le_bytes([low, high])
}
