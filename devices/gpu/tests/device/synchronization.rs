//! Words by which a channel synchronises with others.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use peerbar_gpu::{Config, Mode};

use crate::driver::{Command, Driver, Fault, RAM};

const WRITE_WORD: u8 = 6;
const WAIT: u8 = 7;

#[test]
fn word_is_written_without_its_neighbours() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    for (size, expected) in [(4, 0xffff_ffff_5566_7788), (8, 0x1122_3344_5566_7788)] {
        driver.write_ram(RAM + 0xff8, &[0xff; 24]);
        let write = Command::new(WRITE_WORD, 0, &[RAM + 0x1000, 0x1122_3344_5566_7788, size]);
        assert_eq!(driver.run(0, &write), 0);
        let mut seen = [0; 24];
        driver.read_ram(RAM + 0xff8, &mut seen);
        let words = [0, 8, 16].map(|at| u64::from_le_bytes(seen[at..at + 8].try_into().unwrap()));
        assert_eq!(words, [u64::MAX, expected, u64::MAX], "{size}");
    }
}

#[test]
fn channel_waits_for_a_word_of_another() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.enable(1);
    let start = [0xf0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    driver.vram().write_all_at(&start, 0x100).unwrap();
    // Two bits of the low byte; the neighbour of a word of 4 bytes is ignored.
    let wait = Command::new(WAIT, 0b1, &[0x100, 0x01, 4, 0x11]);
    let fence = driver.submit(0, &wait);
    assert_eq!(driver.run(1, &Command::default()), 0, "others go on");
    for (value, is_over) in [(0x11, false), (0x10, false), (0xe1, true)] {
        let write = Command::new(WRITE_WORD, 0b1, &[0x100, value, 4]);
        driver.run(1, &write);
        // The other channel has had its turn once this is done.
        driver.run(1, &Command::default());
        driver.run(1, &Command::default());
        if !is_over {
            assert!(!driver.is_fenced(fence), "{value:#x}");
        }
    }
    assert_eq!(driver.wait(fence), 0xe1);
}

#[test]
fn host_ends_a_wait_of_the_gpu() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.write_ram(RAM, &[0; 8]);
    let wait = Command::new(WAIT, 0, &[RAM, 1 << 63, 8, 1 << 63]);
    let fence = driver.submit(0, &wait);
    driver.enable(1);
    driver.run(1, &Command::default());
    assert!(!driver.is_fenced(fence));
    driver.write_ram(RAM, &[9, 0, 0, 0, 0, 0, 0, 0x80]);
    assert_eq!(driver.wait(fence), 0x8000_0000_0000_0009);
}

/// Waits on channel 0 for a value that does not come. Returns the time that this took.
fn late(driver: &mut Driver, limit: u64) -> Duration {
    driver.enable(0);
    let wait = Command::new(WAIT, 0b1, &[0x100, 1, 4, 1, limit]);
    let begun = Instant::now();
    let fence = driver.submit(0, &wait);
    driver.wait_for_vector(0);
    let took = begun.elapsed();
    assert!(!driver.is_fenced(fence));
    let expected = Fault {
        code: 7,
        channel: 0,
        write: false,
        address: driver.ring(0).0,
    };
    assert_eq!(driver.take_fault(), Some(expected));
    took
}

#[test]
fn wait_that_is_too_long_is_fault_7_at_its_entry() {
    let mut driver = Driver::new(Mode::Static);
    let took = late(&mut driver, 20_000_000);
    assert!(took >= Duration::from_millis(20), "{took:?}");
    let config = Config {
        job_timeout: Duration::from_millis(30),
        ..Driver::config(Mode::Static)
    };
    let mut driver = Driver::with(&config);
    let took = late(&mut driver, 0);
    assert!(took >= Duration::from_millis(30), "{took:?}");
}

#[test]
fn channel_that_waits_is_disabled_at_once() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let wait = Command::new(WAIT, 0b1, &[0x100, 1, 4, 1]);
    let fence = driver.submit(0, &wait);
    driver.enable(1);
    driver.run(1, &Command::default());
    driver.disable(0);
    driver.wait_for_status(0, 0);
    driver.vram().write_all_at(&[1], 0x100).unwrap();
    driver.run(1, &Command::default());
    assert!(!driver.is_fenced(fence), "it is cancelled");
}
