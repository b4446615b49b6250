//! Namespaces on loop devices, which need root: sectors that are larger than blocks, and a
//! writeback that fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command as Program;

use peerbar_nvme::{Config, Source};
use tempfile::TempDir;

use crate::driver::{DATA, LIST, enabled_with};
use crate::machine::{MIB, config, pattern};
use peerbar_rig::nvme::command::{
    Command, DATASET_MANAGEMENT, FLUSH, READ, WRITE, WRITE_ZEROES, async_event_request, blocks,
    get_log, sc, set_feature,
};

pub(crate) struct LoopDevice(String);

impl LoopDevice {
    /// A device on a sparse image in this folder.
    pub(crate) fn new(folder: &Path, sector_bytes: u32, bytes: u64) -> Self {
        let path = folder.join("image");
        File::create_new(&path).unwrap().set_len(bytes).unwrap();
        let mut losetup = Program::new("losetup");
        losetup.args([
            "--find",
            "--show",
            "--sector-size",
            &sector_bytes.to_string(),
        ]);
        let made = losetup.arg(path).output().unwrap();
        let error = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "a loop device needs root: {error}");
        Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.clone().into()
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
    let folder = tempfile::tempdir().unwrap();
    let device = LoopDevice::new(folder.path(), 4096, MIB);
    for io_uring in [true, false] {
        let mut driver = enabled_with(&Config {
            namespaces: vec![Source::File(device.path())],
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

/// Dword 0 of that asynchronous event, which SMART tells more of.
const RELIABILITY_DEGRADED: u32 = 0x0002_0001;

/// A file system in memory that has room for 64 KiB.
pub(crate) struct SmallMount(TempDir);

impl SmallMount {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Program::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64K", "tmpfs"]);
        assert!(mount.arg(folder.path()).status().unwrap().success());
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let unmounted = Program::new("umount").arg(self.0.path()).status();
        assert!(unmounted.unwrap().success(), "{:?} is left behind", self.0);
    }
}

#[test]
#[ignore = "needs root for a loop device; scripts/test runs it"]
fn failed_writeback_fails_every_later_flush_and_write() {
    for (io_uring, fua) in [(true, false), (true, true), (false, false)] {
        let mount = SmallMount::new();
        let device = LoopDevice::new(mount.path(), 512, MIB);
        let mut driver = enabled_with(&Config {
            namespaces: vec![Source::File(device.path())],
            io_uring,
            ..config()
        });
        driver.store(0, &pattern(64 << 10, 1));
        driver.ok(1, Command::new(FLUSH, 1, &[]));
        let mut write = blocks(WRITE, 1024, 256);
        if fua {
            write.dwords[2] |= 1 << 30;
        }
        let write = driver.prps(write, DATA, 256 * 512, LIST);
        let flush = Command::new(FLUSH, 1, &[]);
        driver.ok(0, set_feature(0x0b, 1 << 2));
        let request = driver.submit(0, async_event_request());
        assert_eq!(driver.code(1, write), if fua { sc::WRITE_FAULT } else { 0 });
        assert_eq!(driver.code(1, flush), sc::WRITE_FAULT);
        let event = driver.take(0);
        assert_eq!((event.cid, event.dw0), (request, RELIABILITY_DEGRADED));
        for command in [flush, write, blocks(WRITE_ZEROES, 0, 1), flush] {
            assert_eq!(driver.code(1, command), sc::WRITE_FAULT, "{io_uring}");
        }
        driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
        let smart = driver.fetch(get_log(0x02, 0, 512), 512);
        assert_eq!(smart[0], 1 << 2, "NVM subsystem reliability is degraded");
    }
}
