//! Bus mastering that the guest turns off and on: the adapter keeps its requests until it may issue
//! them (PCIe Base 6.0, 7.5.1.1.3).

use std::time::{Duration, Instant};

use peerbar_efa_spec::admin::{Opcode, Status};
use peerbar_efa_spec::registers::offset;

use crate::driver::{Driver, RAM, RAM_BYTES};

/// Values of the command register, with memory space on.
const OFF: u16 = 0b010;
const ON: u16 = 0b110;

/// Longer than the engine takes for a command.
const A_WHILE: Duration = Duration::from_millis(5);

#[test]
fn a_command_rung_while_it_is_off_is_fetched_once_it_is_on() {
    let mut driver = Driver::new();
    for _ in 0..2 {
        let entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
        driver.set_command(OFF);
        driver.submit(&entry);
        let image = || {
            let mut image = vec![0; RAM_BYTES as usize];
            driver.read_ram(RAM, &mut image);
            image
        };
        let (before, start) = (image(), Instant::now());
        while start.elapsed() < A_WHILE {
            std::thread::yield_now();
        }
        assert!(image() == before, "no byte of guest RAM changes");
        assert!(!driver.link.take_vector(0));
        driver.set_command(ON);
        driver.completion().expect(Status::Success);
        driver.link.wait_for_vector(0);
    }
}

#[test]
fn no_admin_command_is_lost_however_often_it_changes() {
    let mut driver = Driver::new();
    for round in 0..500_u32 {
        let entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
        driver.submit(&entry);
        for _ in 0..round % 20 * 50 {
            std::hint::spin_loop();
        }
        driver.set_command(OFF);
        driver.set_command(ON);
        let completion = driver.completion();
        completion.expect(Status::Success);
        let domain = completion.view::<[u8; 2]>();
        let payload = [domain[0], domain[1], 0, 0];
        driver
            .execute(Opcode::DeallocPd, &payload)
            .expect(Status::Success);
    }
    assert_eq!(driver.read_register(offset::VERSION), 3);
}
