//! Channels: an error that stops one does not stop another.

use std::time::Duration;

use peerbar_gpu::{Config, Mode};

use peerbar_rig::wait_until;

use peerbar_rig::Link;

use crate::driver::{Command, Driver, MIB, RAM, channel_register};

/// A command that takes long: 2^24 threads on a counter in guest RAM.
fn endless() -> Command {
    Command::launch(4, 0, &[RAM, 1], (1 << 14, 1024))
}

fn counter(driver: &Driver) -> u64 {
    let mut counter = [0; 8];
    driver.read_ram(RAM, &mut counter);
    u64::from_le_bytes(counter)
}

#[test]
fn sixteen_channels_take_turns() {
    let mut driver = Driver::new(Mode::Static);
    let mut fences = Vec::new();
    for channel in 0..16 {
        driver.enable(channel);
        for round in 0..40 {
            let offset = u64::from(channel) * 0x1000 + round * 8;
            let fill = Command::new(2, 0b1, &[offset, 8, offset]);
            fences.push((driver.put_entry(channel, &fill), offset));
        }
    }
    for channel in 0..16 {
        driver.ring_trapped(channel, 40);
    }
    for (fence, offset) in fences {
        driver.wait(fence);
        let mut seen = [0; 8];
        driver.read_bar2(offset, &mut seen);
        assert_eq!(u64::from_le_bytes(seen), offset);
    }
    for channel in 0..16 {
        driver.wait_for_head(channel, 40);
        assert!(driver.take_vector(usize::from(channel) + 1));
    }
    assert!(!driver.take_vector(0));
}

#[test]
fn a_command_ends_while_another_channels_launch_goes_on() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.enable(1);
    driver.submit(0, &endless());
    wait_until("first addition", || (counter(&driver) > 0).then_some(()));
    for _ in 0..10 {
        driver.run(1, &Command::default());
    }
    let added = counter(&driver);
    assert!(added < 1 << 24);
    let goes_on = || (counter(&driver) > added).then_some(());
    wait_until("addition after these commands", goes_on);
}

#[test]
fn a_command_that_takes_too_long_fails_alone() {
    let mut driver = Driver::with(&Config {
        job_timeout: Duration::from_millis(50),
        ..Driver::config(Mode::Static)
    });
    driver.enable(3);
    driver.enable(4);
    driver.run(3, &Command::default());
    let launch = driver.submit(3, &endless());
    driver.wait_for_vector(0);
    assert!(driver.take_vector(4));
    assert_eq!(driver.channel_status(3), 2 | 7 << 8);
    let fault = driver.take_fault().unwrap();
    assert_eq!((fault.code, fault.channel, fault.write), (7, 3, false));
    assert_eq!(fault.address, driver.ring(3).0 + 128);
    assert_eq!(driver.head(3), 1, "HEAD stays at the command");
    assert!(!driver.is_fenced(launch));
    let added = counter(&driver);
    assert!(added > 0 && added < 1 << 24);

    driver.run(4, &Command::default());
    driver.disable(3);
    driver.wait_for_status(3, 0);
    driver.enable(3);
    driver.run(3, &Command::default());
    assert_eq!(counter(&driver), added, "it does not go on");
}

#[test]
fn channel_in_error_stops_until_disabled_others_continue() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(1);
    driver.enable(2);
    driver.run(1, &Command::default());
    let bad = driver.submit(1, &Command::new(0x77, 0, &[]));
    driver.wait_for_vector(0);
    assert!(driver.take_vector(2));
    assert_eq!(driver.channel_status(1), 2 | 4 << 8);
    assert_eq!(driver.head(1), 1, "HEAD stays at the command");
    let fault = driver.take_fault().unwrap();
    assert_eq!((fault.code, fault.channel), (4, 1));
    assert_eq!(fault.address, driver.ring(1).0 + 128);

    driver.submit(1, &Command::default());
    driver.run(2, &Command::default());
    assert_eq!(driver.head(1), 1, "nothing more is taken");
    assert!(!driver.is_fenced(bad));

    driver.disable(1);
    driver.wait_for_status(1, 0);
    driver.enable(1);
    driver.run(1, &Command::default());
    driver.wait_for_head(1, 1);
    assert_eq!(driver.channel_status(1), 1);
    assert_eq!(driver.take_fault(), None);
}

#[test]
fn a_disable_gives_a_long_command_up() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let fence = driver.submit(0, &endless());
    wait_until("first addition", || (counter(&driver) > 0).then_some(()));
    driver.disable(0);
    driver.wait_for_status(0, 0);
    let stopped_at = counter(&driver);
    assert!(stopped_at < 1 << 24);
    driver.enable(0);
    driver.run(0, &Command::default());
    assert_eq!(counter(&driver), stopped_at);
    assert!(!driver.is_fenced(fence));
    assert_eq!(driver.register(0x28), 0, "giving up is no fault");
}

#[test]
fn an_enable_before_the_end_of_a_disable_starts_after_it() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    for _ in 0..200 {
        driver.submit(0, &endless());
        driver.disable(0);
        driver.enable(0);
        driver.run(0, &Command::default());
        driver.wait_for_head(0, 1);
    }
    assert_eq!(driver.register(0x28), 0, "no fault of a doorbell of before");
}

#[test]
fn a_disable_of_another_channel_lets_a_long_command_go_on() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.enable(1);
    let length = 8 * MIB;
    let fence = driver.submit(0, &Command::new(2, 0b1, &[0, length, !0]));
    driver.disable(1);
    driver.enable(1);
    driver.wait(fence);
    let crc = Command::new(4, 0b1, &[0, length]);
    let expected = crc32c::crc32c(&vec![0xff; length as usize]);
    assert_eq!(driver.run(1, &crc), u64::from(expected));
}

#[test]
fn an_impossible_ring_is_a_fault_at_its_address() {
    let mut driver = Driver::new(Mode::Static);
    for (address, space, entries) in [
        (RAM + 64, 0, 64),
        (RAM, 0, 3),
        (RAM, 0, 8192),
        (RAM, 0, 0),
        (32 * MIB - 128, 1, 2),
        (1 << 63, 1, 2),
    ] {
        driver.enable_with(7, address, space, entries);
        driver.wait_for_vector(0);
        driver.wait_for_status(7, 2 | 5 << 8);
        let fault = driver.take_fault().unwrap();
        assert_eq!((fault.code, fault.channel, fault.address), (5, 7, address));
        driver.disable(7);
        driver.wait_for_status(7, 0);
    }
}

#[test]
fn a_ring_that_cannot_be_read_is_a_failed_dma() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable_with(7, 0x5000, 0, 16);
    driver.ring_trapped(7, 1);
    driver.wait_for_status(7, 2 | 2 << 8);
    let fault = driver.take_fault().unwrap();
    assert_eq!((fault.code, fault.channel, fault.write), (2, 7, false));
    assert_eq!(fault.address, 0x5000);
}

#[test]
fn a_doorbell_too_far_ahead_is_a_bad_ring() {
    for value in [65, u32::MAX, 1 << 31] {
        let mut driver = Driver::new(Mode::Static);
        driver.enable(0);
        driver.ring_trapped(0, value);
        driver.wait_for_status(0, 2 | 5 << 8);
        assert_eq!(driver.register(channel_register(0, 0x18)), 0);
    }
}
