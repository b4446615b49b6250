//! Resets while queues are at work: afterwards there is no DMA and no interrupt from before the
//! reset (NVMe Base 2.0, 3.7).

use crate::driver::{DATA, Driver, ENABLED, LIST, enabled, queues};
use crate::machine::{CC, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{READ, WRITE, blocks};

type Reset = fn(&mut Driver);

/// Resets after whose completion all DMA has stopped.
const OF_THE_FUNCTION: [(&str, Reset); 2] = [
    ("function level", |driver| driver.reset_function()),
    ("client", |driver| driver.reset_by_client()),
];

/// Queue 2 with as many reads of the largest size as it holds.
fn at_work() -> Driver {
    let mut driver = enabled();
    driver.create_pair(2, queues(DATA, DATA + 0x1_0000, 512, 512));
    let read = driver.prps(blocks(READ, 0, 256), DATA + 0x2_0000, 256 * 512, LIST);
    for _ in 0..500 {
        driver.put(2, read);
    }
    driver.ring(2);
    driver.take_silently(2);
    driver
}

#[test]
fn a_reset_of_the_function_ends_dma_and_interrupts_at_once() {
    for (name, reset) in OF_THE_FUNCTION {
        let mut driver = at_work();
        reset(&mut driver);
        let image = driver.ram_image();
        let _ = driver.take_vector(2);
        driver.wait_for_status(!0, 0);
        assert!(driver.ram_image() == image, "{name}: guest RAM changes");
        assert!(!driver.take_vector(2), "{name}: an interrupt");
        assert_eq!(driver.register(CC), 0, "{name}");
        works_again(&mut driver, name);
    }
}

#[test]
fn complete_controller_reset_has_ended_dma_and_interrupts() {
    let mut driver = at_work();
    driver.disable();
    let image = driver.ram_image();
    let _ = driver.take_vector(2);
    driver.set_register(0x1010, 3);
    works_again(&mut driver, "controller");
    let queue = (DATA - crate::machine::RAM) as usize..;
    let data_and_list = 0x1_0000..0x3_0000;
    let now = driver.ram_image();
    let same = now[queue.clone()][data_and_list.clone()] == image[queue][data_and_list];
    assert!(same, "queue 2 is gone");
    assert!(!driver.take_vector(2));
}

#[test]
fn commands_of_before_are_not_taken_after_a_reset() {
    for (name, reset) in OF_THE_FUNCTION {
        let mut driver = enabled();
        let kept = pattern(512, 41);
        driver.store(9, &kept);
        driver.put(1, blocks(WRITE, 9, 1).at(LIST, 0));
        reset(&mut driver);
        driver.ring(1);
        driver.wait_for_status(!0, 0);
        works_again(&mut driver, name);
        driver.open_cmb();
        assert_eq!(driver.load(9, 512), kept, "{name}");
    }
}

#[test]
fn enable_toggled_without_waiting_ends_in_a_working_controller() {
    let mut driver = enabled();
    for _ in 0..200 {
        driver.set_register(CC, ENABLED & !1);
        driver.set_register(CC, ENABLED);
        driver.ring(1);
    }
    driver.disable();
    works_again(&mut driver, "toggled");
}

#[test]
fn controller_reset_while_being_enabled_works_afterwards() {
    for (name, reset) in OF_THE_FUNCTION {
        let mut driver = enabled();
        for _ in 0..50 {
            reset(&mut driver);
            driver.set_up_function();
            driver.start_enable();
        }
        driver.wait_for_status(1, 1);
        driver.disable();
        works_again(&mut driver, name);
    }
}

fn works_again(driver: &mut Driver, name: &str) {
    driver.set_up_function();
    driver.bring_up();
    let entry = driver.run(1, blocks(READ, 0, 1).at(LIST, 0));
    assert_eq!(entry.code(), 0, "{name}");
}
