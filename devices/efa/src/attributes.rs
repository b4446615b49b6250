//! The attributes of the adapter: the values of the features that can be read.

use peerbar_dma::Bandwidth;
use peerbar_efa_spec::admin::event_counter::QpEvents;
use peerbar_efa_spec::admin::event_queue::COMPLETION_EVENTS;
use peerbar_efa_spec::admin::feature::{
    DeviceAttributes, DeviceCaps, EventQueueAttributes, HardwareHints, NetworkAttributes,
    QueueAttributes1, QueueAttributes2, id,
};
use peerbar_efa_spec::work::{INLINE_BYTES, LONG_INLINE_BYTES, RDMA_BUFFERS, SEND_BUFFERS};

use crate::limits;
use crate::memory_bar;
use crate::objects::Gid;

/// The capabilities of the data path.
const CAPS: DeviceCaps = DeviceCaps::new()
    .with_rdma_read(true)
    .with_rnr_retry(true)
    .with_rdma_write(true)
    .with_unsolicited_write_recv(true)
    .with_event_counters(true)
    .with_wide_request_id(true);
/// The version of the admin interface, as in VERSION.
const API_VERSION: u32 = 3;
const FIRMWARE_VERSION: u32 = 1;
const DEVICE_VERSION: u32 = 1;
/// Speed in Gbit/s that a link without a bandwidth limit reports.
const LINK_SPEED: u16 = 100;
/// The longest wait for a response, in ms, that fits into the driver's 16 bits of microseconds.
const REGISTER_READ_TIMEOUT: u16 = 65;

/// The features that the device supports.
const FEATURES: [u8; 8] = [
    id::DEVICE_ATTRIBUTES,
    id::ASYNC_EVENTS,
    id::NETWORK_ATTRIBUTES,
    id::QUEUE_ATTRIBUTES_1,
    id::HARDWARE_HINTS,
    id::HOST_INFO,
    id::EVENT_QUEUE_ATTRIBUTES,
    id::QUEUE_ATTRIBUTES_2,
];

/// Returns the attributes of an adapter of this address, on a link of this bandwidth.
pub(crate) fn device(gid: Gid, link: Option<Bandwidth>) -> DeviceAttributes {
    let features = FEATURES.iter().fold(0, |mask, id| mask | 1u64 << id);
    let page_sizes = limits::PAGE_SHIFTS.fold(0, |mask, shift| mask | 1u64 << shift);
    let mut guid = [0; 8];
    guid.copy_from_slice(gid.0.split_at(8).1);
    DeviceAttributes {
        supported_features: features.into(),
        page_sizes: page_sizes.into(),
        firmware_version: FIRMWARE_VERSION.into(),
        admin_api_version: API_VERSION.into(),
        device_version: DEVICE_VERSION.into(),
        doorbell_bar: u16::from(memory_bar::BAR).into(),
        physical_address_width: 64,
        virtual_address_width: 64,
        caps: CAPS,
        max_rdma_bytes: limits::RDMA_BYTES.into(),
        guid,
        link_speed: link.map_or(LINK_SPEED, gigabits).into(),
        reserved: [0; 6],
    }
}

/// Returns a bandwidth in Gbit/s, at least 1.
fn gigabits(bandwidth: Bandwidth) -> u16 {
    const BYTES: u64 = 1_000_000_000 / 8;
    let speed = bandwidth.bytes_per_second().get() / BYTES;
    u16::try_from(speed.max(1)).unwrap_or(u16::MAX)
}

pub(crate) fn network(gid: Gid) -> NetworkAttributes {
    NetworkAttributes {
        gid: gid.0,
        mtu: limits::MESSAGE_BYTES.into(),
    }
}

pub(crate) fn queues_1() -> QueueAttributes1 {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).into();
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).into();
    QueueAttributes1 {
        max_qp: u32::from(limits::QUEUE_PAIRS).into(),
        max_sq_depth: limits::SEND_QUEUE_ENTRIES.into(),
        inline_bytes: count(INLINE_BYTES),
        max_rq_depth: limits::RECEIVE_QUEUE_DESCRIPTORS.into(),
        max_cq: u32::from(limits::COMPLETION_QUEUES).into(),
        max_cq_depth: u32::from(limits::COMPLETION_QUEUE_ENTRIES).into(),
        cq_parts: 1.into(),
        min_sq_depth: 0.into(),
        max_send_buffers: short(SEND_BUFFERS),
        max_receive_buffers: short(limits::RECEIVE_BUFFERS),
        max_mr: count(limits::MEMORY_REGIONS),
        max_mr_pages: count(limits::PAGES_PER_REGION),
        max_pd: u32::from(limits::PROTECTION_DOMAINS).into(),
        max_ah: u32::from(limits::ADDRESS_HANDLES).into(),
        max_sq_bytes: limits::SEND_QUEUE_BYTES.into(),
        max_rdma_buffers: short(RDMA_BUFFERS),
        max_batch: 0.into(),
    }
}

pub(crate) fn queues_2() -> QueueAttributes2 {
    QueueAttributes2 {
        inline_bytes: u16::try_from(LONG_INLINE_BYTES).unwrap_or(0).into(),
        reserved: [0; 6],
        counted_events: QpEvents::ALL,
        max_event_counters: u32::from(limits::EVENT_COUNTERS).into(),
        max_event_count: u64::MAX.into(),
    }
}

pub(crate) fn event_queues() -> EventQueueAttributes {
    EventQueueAttributes {
        max_eq: u32::from(limits::EVENT_QUEUES).into(),
        max_eq_depth: u32::from(limits::EVENT_QUEUE_ENTRIES).into(),
        events: COMPLETION_EVENTS.into(),
    }
}

pub(crate) fn hints() -> HardwareHints {
    HardwareHints {
        register_read_timeout: REGISTER_READ_TIMEOUT.into(),
        watchdog_timeout: 0.into(),
        // Linux' driver interprets it as microseconds.
        admin_timeout: 0.into(),
        poll_interval: 0.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_of_the_link_is_that_of_the_scenario() {
        let speed = |bytes| {
            let bandwidth = Bandwidth::of_bytes_per_second(bytes);
            device(Gid([1; 16]), bandwidth).link_speed.get()
        };
        let gibibyte = 1 << 30;
        let cases = [0, 1, 4 * gibibyte, 25 * gibibyte, u64::MAX].map(speed);
        assert_eq!(cases, [LINK_SPEED, 1, 34, 214, u16::MAX]);
    }
}
