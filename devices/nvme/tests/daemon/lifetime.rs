//! The daemon from start to end: sockets, images, signals, clients that come and go.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use peerbar_rig::nvme::{DATA, RAM, RAM_BYTES};
use peerbar_rig::{Client, check_killed_server, wait_until};
use tempfile::TempDir;

use crate::process::{refused, start, wait_until_asleep};
use crate::{SUCCESS, driver};

pub(crate) fn image(folder: &Path, bytes: u64) -> String {
    let path = folder.join("disk.img");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    format!("file={}", path.display())
}

#[test]
fn what_is_written_is_in_the_image_which_stays_sparse() {
    let folder = TempDir::new().unwrap();
    let daemon = start(&["--namespace", &image(folder.path(), 1 << 30)]);
    let mut driver = driver(&daemon);
    driver.fill(0x33, 8192);
    assert_eq!(driver.io(0x01, DATA, 16), SUCCESS);
    let path = folder.path().join("disk.img");
    let mut start = vec![0; 16384];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(&path).unwrap(), &mut start, 0).unwrap();
    assert_eq!(start[..8192], [0x33; 8192]);
    assert_eq!(start[8192..], [0; 8192]);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(
        metadata.blocks() * 512 < 1 << 20,
        "{} blocks",
        metadata.blocks()
    );
}

#[test]
fn signal_ends_the_server_and_removes_its_socket() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    let socket = daemon.socket().to_owned();
    let _driver = driver(&daemon);
    let ending = daemon.terminate();
    assert_eq!((ending.code, ending.stderr.as_str()), (Some(0), ""));
    assert!(!socket.exists());
}

#[test]
fn socket_of_a_killed_server_is_removed() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    daemon.kill();
    let socket = daemon.socket().to_owned();
    wait_until("the socket is removed", || (!socket.exists()).then_some(()));
    daemon.restart();
    driver(&daemon);
}

#[test]
fn requests_to_a_killed_server_are_refused() {
    check_killed_server(&mut start(&["--namespace", "ram=1M"]));
}

#[test]
fn image_in_use_is_left_to_its_user() {
    let folder = TempDir::new().unwrap();
    let source = image(folder.path(), 1 << 20);
    let daemon = start(&["--namespace", &source]);
    let ending = refused(&["--namespace", &source]);
    assert_eq!(ending.code, Some(69));
    assert!(
        ending.stderr.contains("disk.img") && ending.stderr.contains("in use"),
        "{}",
        ending.stderr
    );
    driver(&daemon);
}

#[test]
fn a_second_client_is_turned_away_and_the_first_one_stays() {
    let daemon = start(&["--namespace", "ram=1M"]);
    let mut driver = driver(&daemon);
    let second = Client::connect_silently(daemon.socket()).unwrap();
    assert!(second.is_hung_up_on());
    assert_eq!(driver.serial(), "test");
}

#[test]
fn lack_of_descriptors_passes() {
    let daemon = start(&["--namespace", "ram=1M"]);
    daemon.limit_descriptors(Some(3));
    let waiting = Client::connect_silently(daemon.socket()).unwrap();
    wait_until("a warning", || {
        daemon.stderr().contains("no client for now").then_some(())
    });
    drop(waiting);
    daemon.limit_descriptors(None);
    assert_eq!(driver(&daemon).serial(), "test");
}

#[test]
fn nonsense_ends_its_own_session_only() {
    let daemon = start(&["--namespace", "ram=1M"]);
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    std::io::Write::write_all(&mut stream, &[0xff; 4096]).unwrap();
    drop(stream);
    assert_eq!(driver(&daemon).serial(), "test");
}

#[test]
fn warnings_that_a_client_provokes_are_limited() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    for _ in 0..30 {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        // A message that is shorter than its header ends the session.
        std::io::Write::write_all(&mut stream, &[0; 16]).unwrap();
        assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0);
    }
    let stderr = daemon.terminate().stderr;
    assert_eq!(stderr.matches("session lost").count(), 10, "{stderr}");
    assert!(stderr.contains(": 20 messages suppressed"), "{stderr}");
}

#[test]
fn doorbell_of_failed_controller_keeps_no_worker_awake() {
    /// The doorbell of I/O submission queue 1.
    const TAIL: u64 = 0x1008;
    let daemon = start(&["--namespace", "ram=1M", "--poll", "never"]);
    let mut driver = driver(&daemon);
    driver.link.unmap((RAM, RAM_BYTES)).unwrap();
    driver.write_doorbell(TAIL, 1);
    driver.wait_for_status(0b10, 0b10);
    driver.write_doorbell(TAIL, 2);
    wait_until_asleep(&daemon, "worker1");
}
