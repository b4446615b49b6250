//! A Persistent Memory Region across restarts of the server.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use peerbar_flight::{Event, FlightFile, WindowId};
use peerbar_nvme_spec::registers::offset::{PMRCTL, PMRMSCL, PMRMSCU, PMRSTS};
use peerbar_pci::{BusAddress, Range};
use peerbar_rig::nvme::command::{READ, WRITE};
use peerbar_rig::nvme::{DATA, Driver};
use peerbar_rig::{Daemon, Link, REGISTERS};
use peerbar_vfio_user::CONFIG_REGION;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::process::{self, refused};
use crate::{DaemonDriver, SUCCESS};

const BYTES: u64 = 4 << 20;
/// The region's BAR.
const REGION: u32 = 4;
/// Address at which commands find the region.
const BASE: u64 = 0x70_0000_0000;

fn kept(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("pmr");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    path
}

fn start(path: &Path, more: &[&str]) -> Daemon {
    let words = ["--namespace", "ram=1M", "--pmr", path.to_str().unwrap()];
    process::start(&[&words, more].concat())
}

fn connect(daemon: &Daemon) -> DaemonDriver {
    let guest = crate::connect(daemon);
    guest.link.set_register(PMRCTL, 1);
    guest.link.set_register(PMRMSCU, 0x70);
    guest.link.set_register(PMRMSCL, 2);
    Driver::enabled(guest)
}

#[test]
fn region_outlives_a_server_that_is_killed() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let mut daemon = start(&path, &[]);
    let mut driver = connect(&daemon);
    driver.link.write(REGION, 0x1000, b"by the processor");
    driver.fill(0x5a, 4096);
    assert_eq!(driver.io(WRITE, DATA, 8), SUCCESS);
    assert_eq!(driver.io(READ, BASE + 0x2000, 8), SUCCESS);
    assert_eq!(driver.link.register(PMRSTS), 0);
    drop(driver);
    daemon.kill();
    let mut daemon = start(&path, &[]);
    let mut driver = connect(&daemon);
    let mut found = [0; 16];
    driver.link.read(REGION, 0x1000, &mut found);
    assert_eq!(&found, b"by the processor");
    assert_eq!(driver.io(WRITE, BASE + 0x2000, 8), SUCCESS);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert_eq!(driver.data(4096), [0x5a; 4096]);
    assert_eq!(daemon.terminate().stderr, "");
}

#[test]
fn client_maps_the_region_and_cannot_shorten_its_file() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let daemon = start(&path, &[]);
    let client = vfio_user::Client::new(daemon.socket()).unwrap();
    let region = client.region(REGION).unwrap();
    assert_eq!(region.size, BYTES);
    assert!(region.sparse_areas.is_empty(), "all of it can be mapped");
    let memory = region.file_offset.as_ref().unwrap().file();
    memory.write_all_at(b"mapped", 0x1234).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[0x1234..][..6], *b"mapped");
    let shortened = memory.set_len(0).map_err(|error| error.raw_os_error());
    assert_eq!(shortened, Err(Some(Errno::ACCESS.raw_os_error())));
}

#[test]
fn window_of_the_region_is_in_the_flight_record() {
    let folder = TempDir::new().unwrap();
    let flight = folder.path().join("flight");
    let daemon = start(&kept(&folder), &["--flight", flight.to_str().unwrap()]);
    let driver = connect(&daemon);
    driver.link.write(REGISTERS, PMRCTL, &[0; 4]);
    let records = FlightFile::open(&flight).unwrap().read().unwrap().records;
    let windows = records.iter().filter_map(|record| match record.event {
        Event::Window(window) if window.id == WindowId::Pmr => Some(window.range),
        _ => None,
    });
    let expected = [Range::new(BusAddress(BASE), BYTES), None];
    assert_eq!(windows.collect::<Vec<_>>(), expected);
    driver.link.read(CONFIG_REGION, 0, &mut [0; 4]);
}

#[test]
fn file_that_cannot_be_a_region_is_refused_in_one_line() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let words = ["--namespace", "ram=1M", "--pmr", path.to_str().unwrap()];
    let _holder = start(&path, &[]);
    let ending = refused(&words);
    assert_eq!(ending.code, Some(69));
    assert!(
        ending.stderr.contains("in use by another run"),
        "{ending:?}"
    );
    let odd = folder.path().join("odd");
    File::create(&odd).unwrap().set_len(BYTES + 1).unwrap();
    let ending = refused(&["--namespace", "ram=1M", "--pmr", odd.to_str().unwrap()]);
    assert_eq!(ending.code, Some(2));
    assert!(ending.stderr.contains("a power of two"), "{ending:?}");
    assert_eq!(ending.stderr.lines().count(), 1);
}

#[test]
fn region_is_served_again_while_a_client_keeps_its_mapping() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let mut daemon = start(&path, &[]);
    let client = vfio_user::Client::new(daemon.socket()).unwrap();
    let region = client.region(REGION).unwrap();
    let kept = region
        .file_offset
        .as_ref()
        .unwrap()
        .file()
        .try_clone()
        .unwrap();
    daemon.kill();
    let mut daemon = start(&path, &[]);
    drop(kept);
    assert_eq!(daemon.terminate().stderr, "");
}

#[test]
fn lost_mapping_shows_in_pmrsts_once_the_file_is_long_again() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let daemon = start(&path, &[]);
    let mut driver = connect(&daemon);
    let client = File::options().write(true).open(&path).unwrap();
    client.set_len(4096).unwrap();
    driver.fill(0x5a, 4096);
    assert_eq!(driver.io(WRITE, DATA, 8), SUCCESS);
    assert_ne!(driver.io(READ, BASE + 0x2000, 8), SUCCESS);
    client.set_len(BYTES).unwrap();
    assert_ne!(driver.io(READ, BASE + 0x2000, 8), SUCCESS, "stays lost");
    assert_ne!(
        driver.link.register(PMRSTS),
        0,
        "PMRSTS says that all is well"
    );
}

#[test]
fn contents_that_were_cut_off_show_in_pmrsts() {
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let daemon = start(&path, &[]);
    let mut driver = connect(&daemon);
    driver.fill(0x5a, 4096);
    assert_eq!(driver.io(WRITE, DATA, 8), SUCCESS);
    assert_eq!(driver.io(READ, BASE + 0x2000, 8), SUCCESS);
    assert_eq!(driver.link.register(PMRSTS), 0);
    let client = File::options().write(true).open(&path).unwrap();
    client.set_len(4096).unwrap();
    client.set_len(BYTES).unwrap();
    assert_ne!(
        driver.link.register(PMRSTS),
        0,
        "PMRSTS says that all is well"
    );
}

#[test]
fn client_cannot_unlock_the_file() {
    use rustix::fs::{FlockOperation, flock};
    let folder = TempDir::new().unwrap();
    let path = kept(&folder);
    let daemon = start(&path, &[]);
    let client = vfio_user::Client::new(daemon.socket()).unwrap();
    let region = client.region(REGION).unwrap();
    let memory = region.file_offset.as_ref().unwrap().file();
    flock(memory, FlockOperation::Unlock).unwrap();
    let words = ["--namespace", "ram=1M", "--pmr", path.to_str().unwrap()];
    assert_eq!(refused(&words).code, Some(69));
}
