//! The INTx pin: a level that is asserted as long as there are entries to take (NVMe over PCIe 1.0,
//! 3.5.1.1).

use std::os::fd::OwnedFd;

use peerbar_nvme::{Config, PollPolicy};
use peerbar_vfio_user::{Device, RegionMapping};

use crate::driver::{Driver, disabled};
use crate::machine::{config, take_event, wait_for_event};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{Command, FLUSH};

const INTMS: u64 = 0x0c;
const INTMC: u64 = 0x10;

fn flush() -> Command {
    Command::new(FLUSH, 1, &[])
}

/// A driver whose queue pair 1 alone raises the pin.
fn driver_with_pin() -> (Driver, OwnedFd) {
    let mut driver = disabled(&config());
    let pin = driver.use_pin();
    driver.bring_up();
    driver.set_register(INTMS, 1);
    (driver, pin)
}

#[test]
fn the_client_waits_for_the_answer_to_each_ring() {
    for poll in [PollPolicy::Never, PollPolicy::Adaptive] {
        let driver = disabled(&Config { poll, ..config() });
        let device = driver.endpoint();
        let mapping = device.region(0).unwrap().mapping;
        assert!(matches!(mapping, RegionMapping::NoArea), "{mapping:?}");
    }
}

#[test]
fn it_is_up_until_every_completion_is_taken() {
    let (mut driver, pin) = driver_with_pin();
    driver.put(1, flush());
    driver.submit(1, flush());
    driver.take_silently(1);
    wait_for_event(&pin, "the pin");
    driver.take_silently(1);
    let head = driver.pair(1).head();
    driver.write_doorbell(0x100c, head - 1);
    driver.end_interrupt();
    wait_for_event(&pin, "the pin, for what is left");
    driver.acknowledge(1);
    driver.end_interrupt();
    driver.let_every_queue_have_a_turn();
    assert!(!take_event(&pin), "nothing is left");
}

#[test]
fn a_masked_vector_does_not_raise_it_until_it_is_unmasked() {
    let (mut driver, pin) = driver_with_pin();
    driver.set_register(INTMS, 1 << 1);
    assert_eq!(driver.register(INTMC), 0b11);
    driver.submit(1, flush());
    driver.take_silently(1);
    driver.let_every_queue_have_a_turn();
    assert!(!take_event(&pin), "masked");
    driver.set_register(INTMC, 1 << 1);
    wait_for_event(&pin, "the pin, unmasked");
    driver.acknowledge(1);
}

#[test]
fn a_reset_of_the_function_lowers_it() {
    let (mut driver, pin) = driver_with_pin();
    driver.submit(1, flush());
    driver.take_silently(1);
    wait_for_event(&pin, "the pin");
    driver.reset_function();
    driver.end_interrupt();
    driver.set_up_function();
    driver.open_cmb();
    driver.enable();
    assert!(!take_event(&pin), "of before the reset");
}
