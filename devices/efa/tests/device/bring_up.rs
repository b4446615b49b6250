//! The bring-up of Linux' driver, from its first register to its features.

use std::net::Ipv6Addr;

use peerbar_efa_spec::admin::feature::{
    AsyncEvents, DeviceAttributes, EventQueueAttributes, FeatureCommand, HardwareHints,
    NetworkAttributes, QueueAttributes1, QueueAttributes2, id,
};
use peerbar_efa_spec::admin::host_info::HostInfo;
use peerbar_efa_spec::admin::statistics::{Basic, GetStats, kind};
use peerbar_efa_spec::admin::{ControlBuffer, ENTRY_BYTES, Opcode, Status};
use peerbar_efa_spec::registers::offset;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::driver::{DATA, DEPTH, Driver, GID, Link, Local};

fn select(feature: u8) -> FeatureCommand {
    let mut command = FeatureCommand::new_zeroed();
    command.select.id = feature;
    command
}

#[track_caller]
fn get<T: FromBytes>(driver: &mut Driver<Local>, feature: u8) -> T {
    driver.execute(Opcode::GetFeature, &select(feature)).view()
}

#[test]
fn registers_are_read_by_dma_and_by_reads() {
    let mut driver = Driver::new();
    assert_eq!(driver.read_register(offset::VERSION), 3);
    assert_eq!(driver.read_register(offset::CONTROLLER_VERSION), 1);
    let width = driver.read_register(offset::CAPS) >> 8 & 0xff;
    assert_eq!(width, 64);
    let mut version = [0; 4];
    driver.link.read(0, offset::VERSION, &mut version);
    assert_eq!(version, [3, 0, 0, 0]);
    assert_eq!(driver.read_register(0xfff0), 0, "there is none");
}

#[test]
fn register_read_is_answered_within_its_access() {
    let mut driver = Driver::new();
    for id in 1..1000u32 {
        driver.write_register(offset::MMIO_REG_READ, id);
        let mut answer = [0; 8];
        driver.read_ram(crate::driver::RAM, &mut answer);
        assert_eq!(answer[..2], id.to_le_bytes()[..2], "no wait is needed");
    }
}

#[test]
fn device_attributes_are_what_the_driver_needs() {
    let mut driver = Driver::new();
    let attributes: DeviceAttributes = get(&mut driver, id::DEVICE_ATTRIBUTES);
    assert_eq!(attributes.supported_features.get(), 0b10_1111_1110);
    assert!(attributes.admin_api_version.get() >= 1);
    assert_eq!(attributes.doorbell_bar.get(), 2);
    assert_ne!(attributes.page_sizes.get() & 1 << 12, 0, "pages of 4 KiB");
    assert!(attributes.caps.rdma_read() && attributes.caps.rdma_write());
    let gid: Ipv6Addr = GID.parse().unwrap();
    assert_eq!(attributes.guid, gid.octets()[8..]);
    let network: NetworkAttributes = get(&mut driver, id::NETWORK_ATTRIBUTES);
    assert_eq!(network.gid, gid.octets());
    assert!(network.mtu.get() >= 4096);
}

#[test]
fn limits_are_shown_to_the_driver() {
    let mut driver = Driver::new();
    let queues: QueueAttributes1 = get(&mut driver, id::QUEUE_ATTRIBUTES_1);
    assert_eq!((queues.max_qp.get(), queues.max_cq.get()), (256, 512));
    assert_eq!(queues.max_sq_bytes.get(), 128 << 10);
    assert_eq!((queues.cq_parts.get(), queues.inline_bytes.get()), (1, 32));
    let more: QueueAttributes2 = get(&mut driver, id::QUEUE_ATTRIBUTES_2);
    assert!(u32::from(more.inline_bytes.get()) >= queues.inline_bytes.get());
    let events: EventQueueAttributes = get(&mut driver, id::EVENT_QUEUE_ATTRIBUTES);
    assert_eq!((events.max_eq.get(), events.events.get()), (32, 1));
    let hints: HardwareHints = get(&mut driver, id::HARDWARE_HINTS);
    assert!(hints.register_read_timeout.get() <= 65);
    assert_eq!(hints.admin_timeout.get(), 0);
}

#[test]
fn features_that_there_are_not_are_refused() {
    let mut driver = Driver::new();
    for feature in [0, id::HOST_INFO, 8, 10, 255] {
        let completion = driver.execute(Opcode::GetFeature, &select(feature));
        completion.expect(Status::UnsupportedOpcode);
    }
    for feature in [0, id::DEVICE_ATTRIBUTES, 255] {
        let completion = driver.execute(Opcode::SetFeature, &select(feature));
        completion.expect(Status::UnsupportedOpcode);
    }
}

#[test]
fn only_groups_of_events_that_there_are_can_be_enabled() {
    let mut driver = Driver::new();
    let groups: AsyncEvents = get(&mut driver, id::ASYNC_EVENTS);
    assert_eq!((groups.supported.get(), groups.enabled.get()), (0x1e, 0));
    for (enabled, status) in [(0x1e, Status::Success), (0x20, Status::IllegalParameter)] {
        let mut command = select(id::ASYNC_EVENTS);
        command.value[4] = enabled;
        driver.execute(Opcode::SetFeature, &command).expect(status);
    }
    let groups: AsyncEvents = get(&mut driver, id::ASYNC_EVENTS);
    assert_eq!(groups.enabled.get(), 0x1e);
}

#[test]
fn host_info_is_read_from_the_control_buffer() {
    const CONTROL_DATA: u8 = 2;
    let mut driver = Driver::new();
    let bytes = size_of::<HostInfo>() as u32;
    let unmapped = DATA + (1 << 40);
    for (flags, length, address, status) in [
        (CONTROL_DATA, bytes, DATA, Status::Success),
        (0, bytes, DATA, Status::IllegalParameter),
        (6, bytes, DATA, Status::IllegalParameter),
        (CONTROL_DATA, bytes - 1, DATA, Status::IllegalParameter),
        (CONTROL_DATA, bytes, unmapped, Status::UnknownError),
        (CONTROL_DATA, bytes, u64::MAX, Status::UnknownError),
    ] {
        let mut command = select(id::HOST_INFO);
        command.control_buffer = ControlBuffer {
            length: length.into(),
            address: address.into(),
        };
        let completion = driver.execute_with(flags, Opcode::SetFeature, command.as_bytes());
        completion.expect(status);
    }
}

#[test]
fn commands_work_in_entries_of_either_length_round_after_round() {
    for entry_bytes in [ENTRY_BYTES, 128] {
        let mut driver = Driver::new();
        driver.entry_bytes = entry_bytes;
        driver.bring_up();
        for _ in 0..3 * DEPTH + 1 {
            let mut command = GetStats::new_zeroed();
            command.kind = kind::BASIC;
            let basic: Basic = driver.execute(Opcode::GetStats, &command).view();
            assert_eq!(basic.sent_packets.get(), 0);
        }
    }
}

#[test]
fn statistics_of_unknown_kind_or_scope_are_refused() {
    let mut driver = Driver::new();
    for kind in 0..=4 {
        let mut command = GetStats::new_zeroed();
        command.kind = kind;
        driver
            .execute(Opcode::GetStats, &command)
            .expect(Status::Success);
        command.scope = 1;
        let completion = driver.execute(Opcode::GetStats, &command);
        completion.expect(Status::IllegalParameter);
    }
    let mut command = GetStats::new_zeroed();
    command.kind = 5;
    let completion = driver.execute(Opcode::GetStats, &command);
    completion.expect(Status::IllegalParameter);
}
