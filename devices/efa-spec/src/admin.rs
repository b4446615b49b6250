//! The admin queue: its entries (efa_admin_defs.h), and the commands in them by subject
//! (efa_admin_cmds_defs.h).
//!
//! A command is a header of 4 bytes, or 12 in an entry of 128 bytes, and a payload. An answer is a
//! header of 8 bytes and a payload. The payloads are the structs of the modules.

pub mod completion_queue;
pub mod event_counter;
pub mod event_queue;
pub mod feature;
pub mod host_info;
pub mod memory_region;
pub mod queue_pair;
pub mod resource;
pub mod statistics;

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of an entry of the admin submission queue, and of the admin completion queue.
pub const ENTRY_BYTES: usize = 64;
/// Length of an entry of the admin submission queue with a checksum (`efa_admin_aq_entry_v2`).
pub const WIDE_ENTRY_BYTES: usize = 128;
/// Length of the payload of a command. It is the same in entries of either length.
pub const PAYLOAD_BYTES: usize = ENTRY_BYTES - size_of::<SubmissionHeader>();
/// Length of the payload of an answer.
pub const ANSWER_BYTES: usize = ENTRY_BYTES - size_of::<CompletionHeader>();

/// The operation of a command (`efa_admin_aq_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Makes a queue pair.
    CreateQp = 1,
    /// Changes the state or attributes of a queue pair.
    ModifyQp = 2,
    /// Queries the state and attributes of a queue pair.
    QueryQp = 3,
    /// Removes a queue pair.
    DestroyQp = 4,
    /// Makes an address handle.
    CreateAh = 5,
    /// Removes an address handle.
    DestroyAh = 6,
    /// Registers a memory region.
    RegMr = 7,
    /// Removes a memory region.
    DeregMr = 8,
    /// Makes a completion queue.
    CreateCq = 9,
    /// Removes a completion queue.
    DestroyCq = 10,
    /// Reads a feature.
    GetFeature = 11,
    /// Sets a feature.
    SetFeature = 12,
    /// Reads statistics.
    GetStats = 13,
    /// Makes a protection domain.
    AllocPd = 14,
    /// Removes a protection domain.
    DeallocPd = 15,
    /// Makes a user access region.
    AllocUar = 16,
    /// Removes a user access region.
    DeallocUar = 17,
    /// Makes an event queue.
    CreateEq = 18,
    /// Removes an event queue.
    DestroyEq = 19,
    /// Makes a memory region for fast registration.
    AllocMr = 20,
    /// A vendor-specific command.
    Service = 21,
    /// Makes an event counter.
    CreateEventCounter = 25,
    /// Removes an event counter.
    DestroyEventCounter = 26,
    /// Attaches an event counter to events of a queue pair.
    AttachEventCounter = 27,
    /// Sets an event counter, or adds to it.
    ModifyEventCounter = 28,
    /// Detaches an event counter from events of a queue pair.
    DetachEventCounter = 29,
}

impl Opcode {
    /// Returns the opcode of this number, or `None` if there is none.
    pub fn of(number: u8) -> Option<Self> {
        let known = [
            Self::CreateQp,
            Self::ModifyQp,
            Self::QueryQp,
            Self::DestroyQp,
            Self::CreateAh,
            Self::DestroyAh,
            Self::RegMr,
            Self::DeregMr,
            Self::CreateCq,
            Self::DestroyCq,
            Self::GetFeature,
            Self::SetFeature,
            Self::GetStats,
            Self::AllocPd,
            Self::DeallocPd,
            Self::AllocUar,
            Self::DeallocUar,
            Self::CreateEq,
            Self::DestroyEq,
            Self::AllocMr,
            Self::Service,
            Self::CreateEventCounter,
            Self::DestroyEventCounter,
            Self::AttachEventCounter,
            Self::ModifyEventCounter,
            Self::DetachEventCounter,
        ];
        known.into_iter().find(|opcode| *opcode as u8 == number)
    }
}

/// The status of a command (`efa_admin_aq_completion_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It succeeded.
    Success = 0,
    /// There is no room for the object that it would make. Linux' driver returns ENOMEM.
    ResourceAllocationFailure = 1,
    /// Its opcode is undefined.
    BadOpcode = 2,
    /// Its opcode is defined, but this device does not support it. Linux' driver returns
    /// EOPNOTSUPP.
    UnsupportedOpcode = 3,
    /// Its entry is damaged: phase, checksum or reserved bits are wrong.
    MalformedRequest = 4,
    /// It names something that does not exist or is not allowed. Linux' driver returns EINVAL.
    IllegalParameter = 5,
    /// The device could not execute it.
    UnknownError = 6,
    /// The object that it would remove is in use.
    ResourceBusy = 7,
}

/// Flags of a command.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CommandFlags {
    /// Changes from one round of the queue to the next; 1 in the first.
    pub phase: bool,
    /// The payload has the address of a control buffer.
    pub control_data: bool,
    /// That address is the address of a list of pages.
    pub control_data_indirect: bool,
    #[bits(5)]
    __: u8,
}

/// Start of an entry of the admin submission queue (`efa_admin_aq_common_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SubmissionHeader {
    /// Number of the command, in the lower 12 bits.
    pub command_id: U16,
    /// An [`Opcode`].
    pub opcode: u8,
    /// Flags.
    pub flags: CommandFlags,
}

/// Start of an entry of 128 bytes (`efa_admin_aq_common_desc_v2`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct WideSubmissionHeader {
    /// As in a short entry.
    pub common: SubmissionHeader,
    /// [`checksum`] of the entry, computed with this field set to 0.
    pub checksum: U16,
    /// Version of the payload.
    pub payload_version: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// The bits of a command's number.
pub const COMMAND_ID: u16 = 0x0fff;

/// Start of an entry of the admin completion queue (`efa_admin_acq_common_desc`). It holds the phase, so it must become
/// visible after the rest of the entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompletionHeader {
    /// Number of the command, in the lower 12 bits.
    pub command_id: U16,
    /// A [`Status`].
    pub status: u8,
    /// Bit 0: changes from one round of the queue to the next; 1 in the first.
    pub phase: u8,
    /// [`checksum`] of the entry, computed with this field set to 0.
    pub checksum: U16,
    /// Zero.
    pub reserved: U16,
}

/// Returns the CRC-16 of an entry: polynomial 8005h, reflected, initial value and final XOR FFFFh.
pub fn checksum(entry: &[u8]) -> u16 {
    const REFLECTED: u16 = 0xa001;
    let mut crc = 0xffff;
    for byte in entry {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1 != 0;
            crc >>= 1;
            if carry {
                crc ^= REFLECTED;
            }
        }
    }
    !crc
}

/// A bus address or IOVA in two halves (`efa_common_mem_addr`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Address {
    /// Lower half.
    pub low: U32,
    /// Upper half.
    pub high: U32,
}

impl Address {
    /// Returns the address.
    pub fn get(&self) -> u64 {
        u64::from(self.high.get()) << 32 | u64::from(self.low.get())
    }
}

impl From<u64> for Address {
    fn from(address: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        Self {
            low: U32::from_bytes([a, b, c, d]),
            high: U32::from_bytes([e, f, g, h]),
        }
    }
}

/// Location of a command's data, or of the next part of a list of pages
/// (`efa_admin_ctrl_buff_info`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ControlBuffer {
    /// Length in bytes.
    pub length: U32,
    /// Address.
    pub address: Address,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-16/USB.
    #[test]
    fn checksum_matches_the_check_value_of_its_kind() {
        assert_eq!(checksum(b"123456789"), 0xb4c8);
        assert_eq!(checksum(&[]), 0);
    }

    #[test]
    fn headers_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<SubmissionHeader>(), 4);
        assert_eq!(size_of::<WideSubmissionHeader>(), 12);
        assert_eq!(size_of::<CompletionHeader>(), 8);
        assert_eq!((PAYLOAD_BYTES, ANSWER_BYTES), (60, 56));
    }

    #[test]
    fn opcodes_are_known_by_their_numbers() {
        assert_eq!(Opcode::of(7), Some(Opcode::RegMr));
        let known = (0..=u8::MAX).filter_map(Opcode::of).count();
        assert_eq!(known, 26);
        assert_eq!(Opcode::of(22), None);
    }

    #[test]
    fn address_is_its_halves() {
        let address = Address::from(0x1234_5678_9abc_def0);
        assert_eq!(address.low.get(), 0x9abc_def0);
        assert_eq!(address.get(), 0x1234_5678_9abc_def0);
    }
}
