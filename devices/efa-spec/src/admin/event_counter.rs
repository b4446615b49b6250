//! Event counters: words in a driver's memory that count events of queue pairs.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object that a counter is attached to (`efa_admin_event_counter_attach_type`): events of a
/// queue pair.
pub const QP_EVENTS: u8 = 0;

/// Changes of a counter (`efa_admin_event_counter_modify_ops`).
pub mod operation {
    /// Sets the value.
    pub const SET: u8 = 0;
    /// Adds the value.
    pub const ADD: u8 = 1;
}

/// Create Event Counter (`efa_admin_create_event_counter_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateEventCounter {
    /// User access region.
    pub uar: U16,
    /// Zero.
    pub reserved: U16,
    /// Address of the word.
    pub address: U64,
}

/// Answer to Create Event Counter (`efa_admin_create_event_counter_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreatedEventCounter {
    /// Name of the counter in later commands.
    pub handle: U32,
    /// Zero.
    pub reserved: U32,
}

/// Destroy Event Counter (`efa_admin_destroy_event_counter_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DestroyEventCounter {
    /// The handle.
    pub handle: U32,
}

/// The events of a queue pair that are counted.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct QpEvents {
    /// Sends that succeeded.
    pub send: bool,
    /// Sends that failed.
    pub send_error: bool,
    /// Receives that succeeded.
    pub receive: bool,
    /// Receives that failed.
    pub receive_error: bool,
    /// RDMA reads that succeeded.
    pub read: bool,
    /// RDMA reads that failed.
    pub read_error: bool,
    /// RDMA writes that succeeded.
    pub write: bool,
    /// RDMA writes that failed.
    pub write_error: bool,
    /// RDMA reads by peers.
    pub remote_read: bool,
    /// RDMA writes by peers.
    pub remote_write: bool,
    #[bits(22)]
    pub reserved: u32,
}

impl QpEvents {
    /// All of them.
    pub const ALL: Self = Self::new()
        .with_send(true)
        .with_send_error(true)
        .with_receive(true)
        .with_receive_error(true)
        .with_read(true)
        .with_read_error(true)
        .with_write(true)
        .with_write_error(true)
        .with_remote_read(true)
        .with_remote_write(true);
}

/// Attach Event Counter and Detach Event Counter (`efa_admin_attach_detach_event_counter_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AttachEventCounter {
    /// The handle of the counter.
    pub handle: U32,
    /// Type of the object: [`QP_EVENTS`].
    pub attach_type: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Handle of the queue pair.
    pub qp: U32,
    /// The events.
    pub events: QpEvents,
}

/// Modify Event Counter (`efa_admin_modify_event_counter_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModifyEventCounter {
    /// The handle.
    pub handle: U32,
    /// One of [`operation`].
    pub operation: u8,
    /// Zero.
    pub reserved: [u8; 7],
    /// The value.
    pub value: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<CreateEventCounter>(), 12);
        assert_eq!(size_of::<AttachEventCounter>(), 16);
        assert_eq!(size_of::<ModifyEventCounter>(), 20);
        assert_eq!(QpEvents::ALL.into_bits().get(), 0x3ff);
        let events = QpEvents::new().with_remote_write(true);
        assert_eq!(events.into_bits().get(), 1 << 9);
    }
}
