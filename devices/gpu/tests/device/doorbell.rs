//! Doorbells that are written through a mapping, without a notification.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};

use peerbar_gpu::Mode;

use peerbar_rig::wait_until;

use peerbar_rig::Link;

use crate::driver::{Command, Driver};

fn load(page: &File, offset: u64) -> u32 {
    let mut word = [0; 4];
    page.read_exact_at(&mut word, offset).unwrap();
    u32::from_le_bytes(word)
}

/// Writes the doorbell as in INTERFACE.md. Returns `true` if KICK was needed.
fn ring(driver: &mut Driver, page: &File, channel: u8) -> bool {
    let doorbell = 0x8000 + 0x40 * u64::from(channel);
    let value = driver.put_so_far(channel);
    page.write_all_at(&value.to_le_bytes(), doorbell).unwrap();
    fence(Ordering::SeqCst);
    let asleep = load(page, doorbell + 4) != 0;
    if asleep {
        driver.set_register(0x2c, 1);
    }
    asleep
}

#[test]
fn only_the_doorbell_page_of_bar0_may_be_mapped() {
    let driver = Driver::new(Mode::Static);
    assert_eq!(driver.areas(0), [(0x8000, 0x1000)]);
    assert_eq!(driver.region_size(0), 0x1_0000);
    let page = driver.memory(0);
    assert_eq!(page.metadata().unwrap().len(), 0x1_0000);
}

#[test]
fn no_ring_through_the_mapping_is_lost() {
    let mut driver = Driver::new(Mode::Static);
    let page = driver.memory(0);
    driver.enable(0);
    driver.enable(9);
    let mut kicks = 0;
    for round in 0..5000u32 {
        let channel = if round % 2 == 0 { 0 } else { 9 };
        let command = driver.put_entry(channel, &Command::default());
        kicks += u32::from(ring(&mut driver, &page, channel));
        driver.wait(command);
    }
    assert!(kicks > 0, "the device sleeps when there is nothing to do");
    driver.wait_for_head(0, 2500);
    driver.wait_for_head(9, 2500);
}

#[test]
fn idle_device_says_that_it_sleeps() {
    let mut driver = Driver::new(Mode::Static);
    let page = driver.memory(0);
    driver.enable(0);
    driver.run(0, &Command::default());
    wait_until("sleep", || (load(&page, 0x8004) == 1).then_some(()));
    wait_until("sleep", || (load(&page, 0x83c4) == 1).then_some(()));
    assert_eq!(load(&page, 0x8000), 1, "the doorbell that was trapped");
}
