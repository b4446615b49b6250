//! Features: capabilities of a device, and settings that a driver can change.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ControlBuffer;

/// Numbers of features (`efa_admin_aq_feature_id`).
pub mod id {
    /// [`DeviceAttributes`](super::DeviceAttributes).
    pub const DEVICE_ATTRIBUTES: u8 = 1;
    /// [`AsyncEvents`](super::AsyncEvents).
    pub const ASYNC_EVENTS: u8 = 2;
    /// [`NetworkAttributes`](super::NetworkAttributes).
    pub const NETWORK_ATTRIBUTES: u8 = 3;
    /// [`QueueAttributes1`](super::QueueAttributes1).
    pub const QUEUE_ATTRIBUTES_1: u8 = 4;
    /// [`HardwareHints`](super::HardwareHints).
    pub const HARDWARE_HINTS: u8 = 5;
    /// [`HostInfo`](super::super::host_info::HostInfo), which can only be set.
    pub const HOST_INFO: u8 = 6;
    /// [`EventQueueAttributes`](super::EventQueueAttributes).
    pub const EVENT_QUEUE_ATTRIBUTES: u8 = 7;
    /// [`QueueAttributes2`](super::QueueAttributes2).
    pub const QUEUE_ATTRIBUTES_2: u8 = 9;
}

/// The feature of a command (`efa_admin_get_set_feature_common_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeatureSelect {
    /// Zero.
    pub reserved: u8,
    /// One of [`id`].
    pub id: u8,
    /// Zero.
    pub reserved_after: U16,
}

/// Get Feature, and Set Feature before its value (`efa_admin_get_feature_cmd`, `efa_admin_set_feature_cmd`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeatureCommand {
    /// Data of the feature, if it is too long for the payload.
    pub control_buffer: ControlBuffer,
    /// The feature.
    pub select: FeatureSelect,
    /// Value to set, if there is no control buffer.
    pub value: [u8; 44],
}

/// Capabilities of the device.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DeviceCaps {
    /// RDMA reads.
    pub rdma_read: bool,
    /// The number of RNR retries can be set.
    pub rnr_retry: bool,
    /// "Data polling of 128 bytes": payload is written in order within each aligned block of 128
    /// bytes, so a program may poll its last byte (rdma-core:
    /// `IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES`). It does not apply to completions.
    pub data_polling_128: bool,
    /// RDMA writes.
    pub rdma_write: bool,
    /// An RDMA write with immediate data need not consume a receive request.
    pub unsolicited_write_recv: bool,
    /// Event counters.
    pub event_counters: bool,
    #[bits(4)]
    __: u8,
    /// Work requests of send queues may have numbers of 64 bits.
    pub wide_request_id: bool,
    #[bits(21)]
    __: u32,
}

/// Attributes and capabilities of the device (`efa_admin_feature_device_attr_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceAttributes {
    /// Bit N: the feature of number N, see [`id`].
    pub supported_features: U64,
    /// Bit N: memory regions may have pages of 2^N bytes.
    pub page_sizes: U64,
    /// Version of the firmware.
    pub firmware_version: U32,
    /// Version of the admin commands, at least 1.
    pub admin_api_version: U32,
    /// Version of the device.
    pub device_version: U32,
    /// Number of the BAR with the doorbells.
    pub doorbell_bar: U16,
    /// Bits of a physical address.
    pub physical_address_width: u8,
    /// Bits of a virtual address.
    pub virtual_address_width: u8,
    /// Its capabilities.
    pub caps: DeviceCaps,
    /// Longest RDMA transfer in bytes.
    pub max_rdma_bytes: U32,
    /// Its unique ID.
    pub guid: [u8; 8],
    /// Speed of its link in Gbit/s; 0 if unknown.
    pub link_speed: U16,
    /// Zero.
    pub reserved: [u8; 6],
}

/// Groups of asynchronous events, as bits (`efa_admin_feature_aenq_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AsyncEvents {
    /// Groups that the device can report.
    pub supported: U32,
    /// Groups that it reports.
    pub enabled: U32,
}

/// The device's address in the network (`efa_admin_feature_network_attr_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NetworkAttributes {
    /// Its GID, in network byte order.
    pub gid: [u8; 16],
    /// Longest payload of a packet in bytes.
    pub mtu: U32,
}

/// Limits (`efa_admin_feature_queue_attr_desc_1`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct QueueAttributes1 {
    /// Queue pairs.
    pub max_qp: U32,
    /// Work requests of a send queue.
    pub max_sq_depth: U32,
    /// Bytes of inline data in a work request.
    pub inline_bytes: U32,
    /// Buffers of a receive queue.
    pub max_rq_depth: U32,
    /// Completion queues.
    pub max_cq: U32,
    /// Entries of a completion queue.
    pub max_cq_depth: U32,
    /// Parts that each completion queue has.
    pub cq_parts: U16,
    /// Minimum number of work requests of a send queue, or 0 for any.
    pub min_sq_depth: U16,
    /// Buffers of a send.
    pub max_send_buffers: U16,
    /// Buffers of a receive.
    pub max_receive_buffers: U16,
    /// Memory regions.
    pub max_mr: U32,
    /// Pages of a memory region.
    pub max_mr_pages: U32,
    /// Protection domains.
    pub max_pd: U32,
    /// Address handles.
    pub max_ah: U32,
    /// Bytes of a send queue in the device's memory.
    pub max_sq_bytes: U32,
    /// Buffers of an RDMA read or write.
    pub max_rdma_buffers: U16,
    /// 64-byte units that may be written to a send queue before its doorbell is; 0 for any.
    pub max_batch: U16,
}

/// More limits (`efa_admin_feature_queue_attr_desc_2`), as the driver's compiler lays them out.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct QueueAttributes2 {
    /// Bytes of inline data in a work request; replaces [`QueueAttributes1::inline_bytes`].
    pub inline_bytes: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Events of queue pairs that can be counted.
    pub counted_events: super::event_counter::QpEvents,
    /// Event counters.
    pub max_event_counters: U32,
    /// Largest value of an event counter, after which it is 0 again.
    pub max_event_count: U64,
}

/// Limits of event queues (`efa_admin_event_queue_attr_desc`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EventQueueAttributes {
    /// Event queues.
    pub max_eq: U32,
    /// Entries of an event queue.
    pub max_eq_depth: U32,
    /// Events that they accept.
    pub events: U32,
}

/// Time limits for the driver. 0 leaves a limit to the driver (`efa_admin_hw_hints`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HardwareHints {
    /// Longest wait for the answer to a [`ReadRequest`](crate::registers::ReadRequest), in ms.
    /// Linux' driver stores it in 16 bits of microseconds, so it is at most 65.
    pub register_read_timeout: U16,
    /// Time without an event after which the driver may consider the device dead, in ms.
    pub watchdog_timeout: U16,
    /// Longest wait for an admin command, in ms. Linux' driver interprets it as microseconds.
    pub admin_timeout: U16,
    /// Time between two polls of the admin completion queue, in ms.
    pub poll_interval: U16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_lengths_of_the_driver() {
        assert_eq!(size_of::<FeatureCommand>(), 60);
        assert_eq!(size_of::<DeviceAttributes>(), 56);
        assert_eq!(size_of::<QueueAttributes1>(), 56);
        assert_eq!(size_of::<QueueAttributes2>(), 24);
        assert_eq!(size_of::<NetworkAttributes>(), 20);
        assert_eq!(size_of::<HardwareHints>(), 8);
        assert_eq!(std::mem::offset_of!(DeviceAttributes, guid), 40);
        assert_eq!(std::mem::offset_of!(QueueAttributes1, max_mr), 32);
        let caps = DeviceCaps::new().with_wide_request_id(true);
        assert_eq!(caps.into_bits().get(), 1 << 10);
    }
}
