//! Resets, by the driver and of the function.

use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::registers::offset;
use peerbar_vfio_user::Device;

use crate::driver::{COMPLETION, DATA, DEPTH, Driver, RAM, SUBMISSION};
use crate::objects::allocate;

#[test]
fn reset_by_the_driver_removes_every_object() {
    let mut driver = Driver::new();
    let first: Vec<_> = (0..8)
        .map(|_| allocate(&mut driver, Opcode::AllocUar))
        .collect();
    driver.bring_up();
    let again: Vec<_> = (0..8)
        .map(|_| allocate(&mut driver, Opcode::AllocUar))
        .collect();
    assert_eq!(first, again);
}

#[test]
fn reset_in_progress_carries_out_no_command() {
    const QUEUE: u64 = DATA;
    const COMPLETIONS: u64 = DATA + 0x1000;
    let mut driver = Driver::new();
    driver.write_register(offset::DEV_CTL, 1);
    driver.set_answers(RAM);
    driver.set_queues(DEPTH, QUEUE, COMPLETIONS);
    let entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
    driver.write_ram(QUEUE, &entry);
    driver.write_register(offset::AQ_PROD_DB, 1);
    driver.wait_for_register(offset::DEV_STS, |status| status & 8 != 0);
    driver.write_register(offset::DEV_CTL, 0);
    driver.wait_for_register(offset::DEV_STS, |status| status & 8 == 0);
    // The first command is the one after the reset: the doorbell write during the reset has no
    // effect.
    driver.set_queues(DEPTH, SUBMISSION, COMPLETION);
    assert_eq!(allocate(&mut driver, Opcode::AllocUar), 0);
    assert_eq!(allocate(&mut driver, Opcode::AllocPd), 0, "none was made");
    let mut header = [0; 8];
    driver.read_ram(COMPLETIONS, &mut header);
    assert_eq!(header, [0; 8], "it is not carried out");
}

#[test]
fn function_that_was_reset_can_be_brought_up_again() {
    let mut driver = Driver::new();
    allocate(&mut driver, Opcode::AllocPd);
    driver.link.endpoint().reset().unwrap();
    driver.set_command(0b110);
    driver.bring_up();
    driver
        .execute(Opcode::AllocPd, &[0; 0])
        .expect(Status::Success);
    driver.link.wait_for_vector(0);
}

#[test]
fn register_read_waits_for_the_end_of_a_reset_of_the_function() {
    let mut driver = Driver::new();
    for _ in 0..50 {
        driver.link.endpoint().reset().unwrap();
        driver.set_command(0b110);
        driver.set_answers(crate::driver::RAM);
        assert_eq!(driver.read_register(offset::VERSION), 3);
    }
}
