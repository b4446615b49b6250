//! Queue pairs.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Transport of a queue pair (`efa_admin_qp_type`).
pub mod transport {
    /// Unreliable Datagram.
    pub const UD: u8 = 1;
    /// Scalable Reliable Datagram.
    pub const SRD: u8 = 2;
}

/// Flags of [`CreateQp`].
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CreateQpFlags {
    /// The address of the send queue is an IOVA of a memory region.
    pub sq_virtual: bool,
    /// The address of the receive queue is an IOVA of a memory region.
    pub rq_virtual: bool,
    /// An RDMA write with immediate data consumes no receive request.
    pub unsolicited_write_recv: bool,
    /// Work requests of the send queue have numbers of 64 bits.
    pub wide_request_id: bool,
    #[bits(4)]
    pub reserved: u8,
}

/// Create QP (`efa_admin_create_qp_cmd`, with `efa_admin_qp_alloc_size` in it).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateQp {
    /// Protection domain.
    pub pd: U16,
    /// One of [`transport`].
    pub transport: u8,
    /// Flags.
    pub flags: CreateQpFlags,
    /// Address of the send queue, if it is not in the device's memory.
    pub sq_address: U64,
    /// Address of the receive queue.
    pub rq_address: U64,
    /// Completion queue of the send queue.
    pub send_cq: U32,
    /// Completion queue of the receive queue.
    pub receive_cq: U32,
    /// Key of the memory region of the send queue, if its address is an IOVA.
    pub sq_key: U32,
    /// Key of the memory region of the receive queue, if its address is an IOVA.
    pub rq_key: U32,
    /// Length of the send queue in bytes.
    pub sq_bytes: U32,
    /// Maximum number of outstanding work requests on the send queue.
    pub sq_depth: U32,
    /// Length of the receive queue in bytes.
    pub rq_bytes: U32,
    /// Maximum number of outstanding work requests on the receive queue.
    pub rq_depth: U32,
    /// User access region.
    pub uar: U16,
    /// Service level; 0 is the default.
    pub service_level: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// Answer to Create QP (`efa_admin_create_qp_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreatedQp {
    /// Name of the queue pair in later commands.
    pub handle: U32,
    /// Number of the queue pair for peers. The lower bits, as many as the number of queue pairs
    /// needs, are unique to it.
    pub number: U16,
    /// Zero.
    pub reserved: U16,
    /// Part of the completion queue that gets the completions of the send queue.
    pub send_sub_cq: U16,
    /// Part of the completion queue that gets the completions of the receive queue.
    pub receive_sub_cq: U16,
    /// Offset of the send queue's doorbell in the BAR of the doorbells.
    pub sq_doorbell: U32,
    /// Offset of the receive queue's doorbell in the BAR of the doorbells.
    pub rq_doorbell: U32,
    /// Offset of the send queue in BAR2.
    pub sq_offset: U32,
}

/// Fields of [`ModifyQp`] that are valid.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct ModifyMask {
    /// State.
    pub state: bool,
    /// Current state.
    pub current_state: bool,
    /// Q_Key.
    pub qkey: bool,
    /// First packet sequence number.
    pub sq_psn: bool,
    /// Notification of a drained send queue.
    pub sq_drained_notify: bool,
    /// Retries.
    pub rnr_retry: bool,
    #[bits(26)]
    pub reserved: u32,
}

/// Modify QP (`efa_admin_modify_qp_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModifyQp {
    /// Fields that are valid.
    pub mask: ModifyMask,
    /// Handle of the queue pair.
    pub handle: U32,
    /// New state, one of [`state`].
    pub state: U32,
    /// Required current state, one of [`state`].
    pub current_state: U32,
    /// Q_Key.
    pub qkey: U32,
    /// First packet sequence number.
    pub sq_psn: U32,
    /// Notify once the send queue is drained.
    pub sq_drained_notify: u8,
    /// Number of times that a message is sent again to a receiver that is not ready; 7 means
    /// without limit. SRD only.
    pub rnr_retry: u8,
    /// Zero.
    pub reserved: U16,
}

/// State of a queue pair (`efa_admin_qp_state`).
pub mod state {
    /// Just created.
    pub const RESET: u32 = 0;
    /// Receive requests may be posted.
    pub const INIT: u32 = 1;
    /// Ready to receive.
    pub const RTR: u32 = 2;
    /// Ready to send.
    pub const RTS: u32 = 3;
    /// The send queue is drained.
    pub const SQD: u32 = 4;
    /// It has failed.
    pub const ERR: u32 = 6;
}

/// The handle of a queue pair: the payload of Query QP and Destroy QP (`efa_admin_query_qp_cmd`,
/// `efa_admin_destroy_qp_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct QpHandle {
    /// The handle.
    pub handle: U32,
}

/// Answer to Query QP (`efa_admin_query_qp_resp`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct QueriedQp {
    /// State, one of [`state`].
    pub state: U32,
    /// Q_Key.
    pub qkey: U32,
    /// First packet sequence number.
    pub sq_psn: U32,
    /// The send queue is being drained.
    pub sq_draining: u8,
    /// Retries.
    pub rnr_retry: u8,
    /// Zero.
    pub reserved: U16,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the driver's packed structs, without the header of an answer.
    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<CreateQp>(), 60);
        assert_eq!(size_of::<CreatedQp>(), 24);
        assert_eq!(size_of::<ModifyQp>(), 28);
        assert_eq!(size_of::<QueriedQp>(), 16);
        assert_eq!(std::mem::offset_of!(CreateQp, uar), 52);
    }
}
