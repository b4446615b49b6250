//! Blocks that are smaller than the sectors of the device that holds them. It needs root, for a loop device.

use std::process::Command as Program;

use peerbar_nvme::{Config, Source};

use crate::command::{Command, DATASET_MANAGEMENT, WRITE_ZEROES, blocks};
use crate::driver::{DATA, Driver};
use crate::machine::{MIB, config, pattern};

/// A loop device with sectors of 4096 bytes.
struct LoopDevice(String);

impl LoopDevice {
    fn new() -> Self {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(MIB).unwrap();
        let mut losetup = Program::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", "4096"]);
        let made = losetup.arg(image.path()).output().unwrap();
        let error = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "a loop device needs root: {error}");
        Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Program::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.unwrap().success(), "{} is left behind", self.0);
    }
}

#[test]
#[ignore = "needs root for a loop device; scripts/test runs it"]
fn blocks_of_half_a_sector_are_zeroed_and_deallocated() {
    let device = LoopDevice::new();
    for io_uring in [true, false] {
        let mut driver = Driver::with(&Config {
            namespaces: vec![Source::File(device.0.clone().into())],
            io_uring,
            ..config()
        });
        let mut expected = pattern(64 * 512, 4);
        driver.store(0, &expected);
        driver.ok(1, blocks(WRITE_ZEROES, 1, 2));
        expected[512..3 * 512].fill(0);
        let mut range = [0; 16];
        range[4..8].copy_from_slice(&30_u32.to_le_bytes());
        range[8..].copy_from_slice(&9_u64.to_le_bytes());
        driver.write(DATA, &range);
        driver.ok(
            1,
            Command::new(DATASET_MANAGEMENT, 1, &[0, 0b100]).at(DATA, 0),
        );
        expected[9 * 512..39 * 512].fill(0);
        assert!(driver.load(0, expected.len()) == expected, "{io_uring}");
    }
}
