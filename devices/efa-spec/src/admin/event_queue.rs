//! Commands for event queues (efa_admin_cmds_defs.h), whose entries are
//! [`EventEntry`](crate::completion::EventEntry), and the entries of the asynchronous event queue
//! (efa_admin_defs.h).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Address;

/// Create EQ (`efa_admin_create_eq_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateEq {
    /// Number of entries, a power of two.
    pub depth: U16,
    /// MSI-X vector that is raised when there are new entries.
    pub vector: u8,
    /// Bits 4:0: length of an entry in words of 4 bytes.
    pub entry_words: u8,
    /// Address of the entries.
    pub address: Address,
    /// Events that it accepts, see [`COMPLETION_EVENTS`].
    pub events: U32,
    /// Zero.
    pub reserved: U32,
}

/// Bit of [`CreateEq::events`]: events of completion queues.
pub const COMPLETION_EVENTS: u32 = 1;

/// The number of an event queue: the answer to Create EQ and the payload of Destroy EQ
/// (`efa_admin_create_eq_resp`, `efa_admin_destroy_eq_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EqNumber {
    /// The number.
    pub eq: U16,
    /// Zero.
    pub reserved: U16,
}

/// Group of an asynchronous event (`efa_admin_aenq_group`), which is also the number of its bit in
/// a mask of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum EventGroup {
    /// The device has failed.
    FatalError = 1,
    /// A warning.
    Warning = 2,
    /// A notification.
    Notification = 3,
    /// The device is alive.
    KeepAlive = 4,
}

impl EventGroup {
    /// Returns its bit in a mask of groups.
    pub fn mask(self) -> u32 {
        1 << self as u16
    }
}

/// Entry of the asynchronous event queue (`efa_admin_aenq_entry`). Its first 8 bytes hold the phase, so they must become
/// visible after the rest.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AsyncEvent {
    /// An [`EventGroup`].
    pub group: U16,
    /// Event within that group.
    pub syndrome: U16,
    /// Bit 0: changes from one round of the queue to the next; 1 in the first.
    pub phase: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Time of the event, lower half. The device chooses the unit.
    pub timestamp_low: U32,
    /// Time of the event, upper half.
    pub timestamp_high: U32,
    /// Data of the event.
    pub data: [u8; 48],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<CreateEq>(), 20);
        assert_eq!(size_of::<AsyncEvent>(), 64);
        assert_eq!(EventGroup::KeepAlive.mask(), 0x10);
    }
}
