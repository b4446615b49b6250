//! Interrupts and asynchronous events.

use peerbar_efa_spec::admin::event_queue::AsyncEvent;
use peerbar_efa_spec::admin::feature::{FeatureCommand, id};
use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::registers::offset;
use zerocopy::{FromBytes, FromZeros};

use crate::driver::{Driver, EVENTS};

#[test]
fn completion_interrupts_unless_the_driver_polls() {
    let mut driver = Driver::new();
    driver.write_register(offset::INTR_MASK, 1);
    driver
        .execute(Opcode::AllocPd, &[0; 0])
        .expect(Status::Success);
    driver.write_register(offset::INTR_MASK, 0);
    driver
        .execute(Opcode::AllocPd, &[0; 0])
        .expect(Status::Success);
    driver.link.wait_for_vector(0);
    assert!(!driver.link.is_raised(0), "of two commands one interrupts");
}

#[test]
fn completion_interrupts_by_the_vector_of_its_queue() {
    let mut driver = Driver::new();
    driver.reset();
    driver.set_queues(32, EVENTS - 0x2000, EVENTS - 0x1000);
    driver.write_register(offset::ACQ_CAPS, 32 | 64 << 16 | 5 << 24);
    driver
        .execute(Opcode::AllocPd, &[0; 0])
        .expect(Status::Success);
    driver.link.wait_for_vector(5);
}

#[test]
#[ignore = "waits 5 s"]
fn keep_alive_comes_once_it_is_enabled() {
    let mut driver = Driver::new();
    let mut command = FeatureCommand::new_zeroed();
    command.select.id = id::ASYNC_EVENTS;
    command.value[4] = 0x10;
    driver.write_register(offset::INTR_MASK, 1);
    driver
        .execute(Opcode::SetFeature, &command)
        .expect(Status::Success);
    driver.write_register(offset::INTR_MASK, 0);
    driver.link.wait_for_vector(0);
    let mut entry = [0; 64];
    driver.read_ram(EVENTS, &mut entry);
    let event = AsyncEvent::read_from_bytes(&entry).unwrap();
    assert_eq!((event.group.get(), event.phase), (4, 1));
    assert_ne!(event.timestamp_low.get(), 0);
}
