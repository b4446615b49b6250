//! Resets: by register, function-level, by the client.

use std::os::unix::fs::FileExt;

use peerbar_gpu::Mode;
use peerbar_vfio_user::Device;

use peerbar_rig::wait_until;

use peerbar_rig::Link;

use crate::driver::{Command, Driver, RAM};

type Reset = fn(&mut Driver);

/// Every way to reset. Those of the function leave its configuration as after power-on.
const RESETS: [(&str, Reset); 3] = [
    ("CONTROL", |driver| driver.set_register(0x20, 1)),
    ("function level", |driver| {
        let express = driver.capability(0x10);
        driver.configure(express + 8, &0x8000u16.to_le_bytes());
    }),
    ("client", |driver| driver.endpoint().reset().unwrap()),
];

#[test]
fn a_reset_clears_what_a_driver_set_up_and_keeps_vram() {
    for (name, reset) in RESETS {
        let mut driver = Driver::new(Mode::Static);
        driver.enable(0);
        driver.run(0, &Command::new(2, 0b1, &[0, 8, 0x77]));
        driver.submit(0, &Command::new(0x55, 0, &[]));
        driver.wait_for_vector(0);
        reset(&mut driver);
        driver.wait_until_ready();
        assert_eq!(driver.channel_status(0), 0, "{name}");
        assert_eq!((driver.register(0x28), driver.register(0x30)), (0, 0));
        assert_eq!(driver.register(0x8000), 0, "doorbell");
        let mut kept = [0; 8];
        driver.vram().read_exact_at(&mut kept, 0).unwrap();
        assert_eq!(u64::from_le_bytes(kept), 0x77);
        driver.set_up_function();
        driver.enable(0);
        assert_eq!(driver.run(0, &Command::default()), 0, "{name}");
    }
}

#[test]
fn no_dma_of_before_is_seen_after_a_reset() {
    for (name, reset) in RESETS {
        let mut driver = Driver::new(Mode::Static);
        driver.enable(0);
        let long = Command::launch(4, 0, &[RAM, 1], (1 << 14, 1024));
        let fence = driver.submit(0, &long);
        let counter = |driver: &Driver| {
            let mut counter = [0; 8];
            driver.read_ram(RAM, &mut counter);
            u64::from_le_bytes(counter)
        };
        wait_until("first addition", || (counter(&driver) > 0).then_some(()));
        reset(&mut driver);
        let at_reset = counter(&driver);
        driver.wait_until_ready();
        driver.set_up_function();
        driver.enable(0);
        driver.run(0, &Command::default());
        assert_eq!(counter(&driver), at_reset, "{name}");
        assert!(!driver.is_fenced(fence));
        assert_eq!(driver.register(0x28), 0, "{name}: no fault of before");
    }
}

#[test]
fn a_device_that_is_reset_all_the_time_ends_up_ready() {
    let mut driver = Driver::new(Mode::Window);
    for round in 0..200u32 {
        driver.set_window(round % 64, Some(0x1_0000));
        driver.enable(0);
        driver.submit(0, &Command::new(2, 0b1, &[0, 4 << 20, 0]));
        driver.set_register(0x20, 1);
        driver.set_register(0x40, round % 64);
        assert_eq!(driver.wide_register(0x48), 0, "the window is empty at once");
    }
    driver.wait_until_ready();
    driver.enable(0);
    assert_eq!(driver.run(0, &Command::default()), 0);
    assert_eq!(driver.register(0x28), 0);
}
