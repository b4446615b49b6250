//! Completions of work requests (efa_io_defs.h), the doorbell of a completion queue (efa_io_regs_defs.h), and the entries of
//! an event queue (efa_admin_defs.h).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a short entry.
pub const ENTRY_BYTES: usize = size_of::<ReceiveCompletion>();
/// Length of an extended entry (`efa_io_rx_cdesc_ex`).
pub const EXTENDED_ENTRY_BYTES: usize = size_of::<ExtendedCompletion>();
/// The address handle in completions from a sender without one.
pub const NO_ADDRESS_HANDLE: u16 = 0xffff;

/// The outcome of a work request (`efa_io_comp_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompletionStatus {
    /// It succeeded.
    Ok = 0,
    /// It was not executed, since its queue pair is in error or being destroyed.
    Flushed = 1,
    /// The queue pair itself failed.
    LocalQueuePair = 2,
    /// The adapter does not support this operation.
    LocalUnsupportedOperation = 3,
    /// The queue pair's protection domain has no such address handle.
    LocalInvalidAddressHandle = 4,
    /// A local buffer is not in the memory region of its key, or the region does not permit it.
    LocalInvalidKey = 5,
    /// The message is too long.
    LocalBadLength = 6,
    /// A remote buffer is not in the memory region of its key, or the region does not permit it.
    RemoteBadAddress = 7,
    /// The remote side aborted the transfer.
    RemoteAbort = 8,
    /// The queue pair does not exist, or does not receive.
    RemoteBadQueuePair = 9,
    /// The remote side had no receive posted.
    RemoteNotReady = 10,
    /// The remote side's receive is too short.
    RemoteBadLength = 11,
    /// The remote side failed.
    RemoteBadStatus = 12,
    /// The remote side does not answer any more.
    LocalUnresponsiveRemote = 13,
    /// The remote side has no address handle of this adapter, which RDMA requires.
    RemoteUnknownPeer = 14,
    /// The remote side has never answered.
    LocalUnreachableRemote = 15,
    /// The remote side lacks a capability.
    RemoteFeatureMismatch = 18,
}

impl CompletionStatus {
    /// Every status.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Flushed,
        Self::LocalQueuePair,
        Self::LocalUnsupportedOperation,
        Self::LocalInvalidAddressHandle,
        Self::LocalInvalidKey,
        Self::LocalBadLength,
        Self::RemoteBadAddress,
        Self::RemoteAbort,
        Self::RemoteBadQueuePair,
        Self::RemoteNotReady,
        Self::RemoteBadLength,
        Self::RemoteBadStatus,
        Self::LocalUnresponsiveRemote,
        Self::RemoteUnknownPeer,
        Self::LocalUnreachableRemote,
        Self::RemoteFeatureMismatch,
    ];

    /// Returns the status of this number, or `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == number)
    }
}

/// The queue of a completed work request (`efa_io_queue_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueType {
    /// A send queue.
    Send = 1,
    /// A receive queue.
    Receive = 2,
}

/// Field `flags` of a completion.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CompletionFlags {
    /// Toggles with each pass through the queue, so that user space sees which entries are new.
    pub phase: bool,
    /// Number of a [`QueueType`].
    #[bits(2)]
    pub queue_type: u8,
    /// Immediate data is present. Only in completions of a receive queue.
    pub has_immediate: bool,
    /// Number of an [`Operation`](crate::work::Operation).
    #[bits(3)]
    pub operation: u8,
    /// No receive was consumed: the completion belongs to an RDMA write with immediate data, on a
    /// queue pair that was created for this.
    pub unsolicited: bool,
}

/// The start of every completion (`efa_io_cdesc_common`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompletionCommon {
    /// Number of the work request.
    pub req_id: U16,
    /// Number of a [`CompletionStatus`].
    pub status: u8,
    /// Description of the completion.
    pub flags: CompletionFlags,
    /// Number of the local queue pair.
    pub qp_num: U16,
}

/// Completion of a send queue (`efa_io_tx_cdesc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SendCompletion {
    /// Common part of all completions.
    pub common: CompletionCommon,
    /// Upper part of a number of 64 bits.
    pub req_id_ex: [U16; 3],
    /// Zero.
    pub reserved: [u8; 4],
}

/// Completion of a receive queue (`efa_io_rx_cdesc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReceiveCompletion {
    /// Common part of all completions.
    pub common: CompletionCommon,
    /// Bytes that were received, lower half.
    pub length: U16,
    /// Address handle of the sender, or [`NO_ADDRESS_HANDLE`].
    pub ah: U16,
    /// Number of the sender's queue pair.
    pub src_qp_num: U16,
    /// Immediate data, if present.
    pub immediate: U32,
}

/// An extended completion of a receive queue (`efa_io_rx_cdesc_ex`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedCompletion {
    /// The short entry.
    pub base: ReceiveCompletion,
    /// For an RDMA write, the first two bytes contain the upper half of the number of received
    /// bytes. For a sender without an address handle, if the queue requests it: the sender's
    /// address.
    pub extension: [u8; 16],
}

/// Value of a completion queue's doorbell (efa_io_regs_defs.h, `EFA_IO_REGS_CQ_DB_*`).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CompletionDoorbell {
    /// Number of entries that user space has consumed, modulo 2^16.
    #[bits(16)]
    pub consumer_index: u16,
    #[bits(13)]
    __: u16,
    /// Number of events that user space has taken, modulo 4.
    #[bits(2)]
    pub command_sn: u8,
    /// Requests an event for the next completion.
    pub arm: bool,
}

/// Length of an entry of an event queue.
pub const EVENT_BYTES: usize = size_of::<EventEntry>();

/// An entry of an event queue (`efa_admin_eqe`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EventEntry {
    /// Description of the event.
    pub common: EventCommon,
    /// Zero.
    pub reserved: U32,
    /// Number of the completion queue that has a completion.
    pub completion_queue: U16,
    /// Zero.
    pub reserved2: [u8; 6],
}

/// Field `common` of [`EventEntry`].
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct EventCommon {
    /// Toggles with each pass through the queue.
    pub phase: bool,
    /// 0: a completion.
    pub event_type: u8,
    #[bits(23)]
    __: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<CompletionCommon>(), 6);
        assert_eq!(size_of::<SendCompletion>(), 16);
        assert_eq!((ENTRY_BYTES, EXTENDED_ENTRY_BYTES), (16, 32));
        assert_eq!(offset_of!(ReceiveCompletion, immediate), 12);
        assert_eq!(EVENT_BYTES, 16);
        assert_eq!(offset_of!(EventEntry, completion_queue), 8);
    }

    #[test]
    fn bits_are_those_of_the_header() {
        let flags = CompletionFlags::new()
            .with_phase(true)
            .with_queue_type(QueueType::Receive as u8)
            .with_has_immediate(true)
            .with_operation(2)
            .with_unsolicited(true);
        assert_eq!(flags.into_bits(), 0xad);
        let doorbell = CompletionDoorbell::new()
            .with_consumer_index(0x1234)
            .with_command_sn(3)
            .with_arm(true);
        assert_eq!(doorbell.into_bits(), 0xe000_1234);
        let event = EventCommon::new().with_phase(true).with_event_type(1);
        assert_eq!(event.as_bytes(), [3, 0, 0, 0]);
    }

    #[test]
    fn status_has_its_number_and_no_other() {
        let known = (0..=u8::MAX).filter_map(CompletionStatus::from_number);
        assert_eq!(known.collect::<Vec<_>>(), CompletionStatus::ALL);
        assert_eq!(CompletionStatus::RemoteFeatureMismatch as u8, 18);
        assert_eq!(CompletionStatus::from_number(16), None);
    }
}
