//! The device by its socket, with the crate's own client.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use peerbar_foreign::registers::{
    COPIES, IDENTITY, IDENTITY_VALUE, LENGTH, MEMORY_BAR, MEMORY_BYTES, REGISTER_BAR, SOURCE,
    START, Status, TARGET,
};
use vfio_user::Client;

/// VFIO_PCI_CONFIG_REGION_INDEX.
const CONFIG: u32 = 7;
/// Where the client maps its memory.
const RAM: u64 = 0x10_0000;
const OWN: u64 = 0x40_0000_0000;

/// A served device. Its process ends with it.
struct Device {
    process: Child,
    client: Client,
    ram: File,
    _folder: tempfile::TempDir,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Waits until the program with these `options` listens.
fn connect(socket: &Path, process: &mut Child) -> Client {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match Client::new(socket) {
            Ok(client) => return client,
            Err(error) => {
                assert!(process.try_wait().unwrap().is_none(), "{error}");
                assert!(Instant::now() < deadline, "no socket: {error}");
                thread::yield_now();
            }
        }
    }
}

/// Starts the device with memory and bus mastering on, and 64 KiB of the client's memory mapped.
fn device(options: &[&str]) -> Device {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerbar-foreign"));
    let command = command.arg("--socket-path").arg(&socket).args(options);
    let mut process = command.spawn().unwrap();
    let mut client = connect(&socket, &mut process);
    let ram = tempfile::tempfile().unwrap();
    ram.set_len(64 << 10).unwrap();
    client.dma_map(0, RAM, 64 << 10, ram.as_raw_fd()).unwrap();
    let bar = OWN.to_le_bytes();
    client.region_write(CONFIG, 0x18, &bar).unwrap();
    client.region_write(CONFIG, 4, &[0b110, 0]).unwrap();
    Device {
        process,
        client,
        ram,
        _folder: folder,
    }
}

impl Device {
    fn read(&mut self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client
            .region_read(REGISTER_BAR, register, &mut bytes)
            .unwrap();
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, register: u64, bytes: &[u8]) {
        self.client
            .region_write(REGISTER_BAR, register, bytes)
            .unwrap();
    }

    fn copy(&mut self, source: u64, target: u64, length: u32) -> Status {
        self.write(SOURCE, &source.to_le_bytes());
        self.write(TARGET, &target.to_le_bytes());
        self.write(LENGTH, &length.to_le_bytes());
        self.write(START, &1u32.to_le_bytes());
        Status::from_value(self.read(START)).unwrap()
    }

    fn ram(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.ram.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

#[test]
fn copies_between_own_memory_and_its_client_s() {
    let mut device = device(&[]);
    assert_eq!(device.read(IDENTITY), IDENTITY_VALUE);
    device.ram.write_all_at(b"peer to peer", 0).unwrap();
    assert_eq!(device.copy(RAM, OWN + 8, 12), Status::Done);
    let mut own = [0; 12];
    device.client.region_read(MEMORY_BAR, 8, &mut own).unwrap();
    assert_eq!(&own, b"peer to peer");
    assert_eq!(device.copy(OWN + 8, RAM + 4096, 12), Status::Done);
    assert_eq!(device.ram(4096, 12), b"peer to peer");
    assert_eq!(device.read(COPIES), 2);
}

#[test]
fn own_memory_is_lent_whole_with_a_descriptor() {
    let mut device = device(&[]);
    device.ram.write_all_at(b"lent", 0).unwrap();
    assert_eq!(device.copy(RAM, OWN, 4), Status::Done);
    let region = device.client.region(MEMORY_BAR).unwrap();
    assert_eq!(region.size, u64::from(MEMORY_BYTES));
    assert_eq!(region.sparse_areas.len(), 1);
    let file = region.file_offset.as_ref().unwrap().file();
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"lent");
    let registers = device.client.region(REGISTER_BAR).unwrap();
    assert!(registers.file_offset.is_none());
}

#[test]
fn unmapped_memory_and_a_silent_bus_are_refused() {
    let mut device = device(&[]);
    assert_eq!(device.copy(0, OWN, 4), Status::SourceUnmapped);
    assert_eq!(device.copy(OWN, RAM + 0xfffe, 4), Status::TargetUnmapped);
    device.client.dma_unmap(RAM, 64 << 10).unwrap();
    assert_eq!(device.copy(OWN, RAM, 4), Status::TargetUnmapped);
    device.client.region_write(CONFIG, 4, &[0b010, 0]).unwrap();
    assert_eq!(device.copy(OWN, OWN + 64, 4), Status::NotMaster);
}

#[test]
fn kept_mapping_is_used_after_its_end() {
    let mut device = device(&["--keep-mappings"]);
    device.client.dma_unmap(RAM, 64 << 10).unwrap();
    assert_eq!(device.copy(RAM, OWN, 4), Status::Done);
}

#[test]
fn device_dies_at_the_order_after_the_given_copies() {
    let mut device = device(&["--die-after", "1"]);
    assert_eq!(device.copy(RAM, OWN, 4), Status::Done);
    let order = device.client.region_write(REGISTER_BAR, START, &[1; 4]);
    assert!(order.is_err());
    assert_eq!(device.process.wait().unwrap().code(), Some(1));
}

#[test]
fn answers_of_a_slow_device_are_late() {
    let mut device = device(&["--slow", "100"]);
    let start = Instant::now();
    device.read(IDENTITY);
    assert!(start.elapsed() >= Duration::from_millis(100));
}
