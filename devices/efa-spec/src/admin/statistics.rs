//! Statistics.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ControlBuffer;

/// Kinds of statistics (`efa_admin_get_stats_type`).
pub mod kind {
    /// [`Basic`](super::Basic).
    pub const BASIC: u8 = 0;
    /// [`Messages`](super::Messages).
    pub const MESSAGES: u8 = 1;
    /// [`RdmaRead`](super::RdmaRead).
    pub const RDMA_READ: u8 = 2;
    /// [`RdmaWrite`](super::RdmaWrite).
    pub const RDMA_WRITE: u8 = 3;
    /// [`Network`](super::Network).
    pub const NETWORK: u8 = 4;
}

/// Scopes of statistics (`efa_admin_get_stats_scope`).
pub mod scope {
    /// The whole adapter.
    pub const ALL: u8 = 0;
    /// One queue.
    pub const QUEUE: u8 = 1;
}

/// Get Stats (`efa_admin_aq_get_stats_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetStats {
    /// Buffer for more statistics.
    pub control_buffer: ControlBuffer,
    /// One of [`kind`].
    pub kind: u8,
    /// One of [`scope`].
    pub scope: u8,
    /// Number of the queue.
    pub queue: U16,
}

/// Data that the adapter has sent and received (`efa_admin_basic_stats`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Basic {
    /// Bytes sent.
    pub sent_bytes: U64,
    /// Packets sent.
    pub sent_packets: U64,
    /// Bytes received.
    pub received_bytes: U64,
    /// Packets received.
    pub received_packets: U64,
    /// Packets received and dropped.
    pub dropped: U64,
    /// Packets with a wrong Q_Key.
    pub qkey_violations: U64,
}

/// Messages of sends and receives (`efa_admin_messages_stats`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Messages {
    /// Bytes of sends.
    pub sent_bytes: U64,
    /// Sends.
    pub sends: U64,
    /// Bytes of receives.
    pub received_bytes: U64,
    /// Receives.
    pub receives: U64,
}

/// RDMA reads (`efa_admin_rdma_read_stats`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RdmaRead {
    /// Reads by this adapter.
    pub reads: U64,
    /// Their bytes.
    pub bytes: U64,
    /// Reads that failed.
    pub errors: U64,
    /// Bytes that peers have read here.
    pub response_bytes: U64,
}

/// RDMA writes (`efa_admin_rdma_write_stats`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RdmaWrite {
    /// Writes by this adapter.
    pub writes: U64,
    /// Their bytes.
    pub bytes: U64,
    /// Writes that failed.
    pub errors: U64,
    /// Bytes that peers have written here.
    pub received_bytes: U64,
}

/// Retransmissions (`efa_admin_network_stats`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Network {
    /// Bytes sent again.
    pub retransmitted_bytes: U64,
    /// Packets sent again.
    pub retransmitted_packets: U64,
    /// Time-outs after which packets were sent again.
    pub timeouts: U64,
    /// Peers that did not answer.
    pub unresponsive: U64,
    /// Connections that were impaired.
    pub impaired: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<GetStats>(), 16);
        assert_eq!(size_of::<Basic>(), 48);
        assert_eq!(size_of::<Messages>(), 32);
        assert_eq!(size_of::<RdmaRead>(), 32);
        assert_eq!(size_of::<RdmaWrite>(), 32);
        assert_eq!(size_of::<Network>(), 40);
    }
}
