//! Interrupts of the admin queue.

use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::registers::offset;

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
    assert!(
        !driver.link.take_vector(0),
        "of two commands one interrupts"
    );
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
