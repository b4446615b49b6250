//! Memory that the client does not share: the daemon has to ask for it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use peerbar_rig::nvme::command::sc;
use peerbar_rig::nvme::{DATA, Driver, RAM, RAM_BYTES};
use peerbar_rig::{
    Answer, Client, Daemon, Guest, GuestRam, Link, REGISTERS, UpstreamRequest, memory_file,
    wait_until,
};
use rustix::fs::SealFlags;
use rustix::io::Errno;

use crate::process::start;
use crate::{DaemonDriver, SUCCESS};

/// Address of a peer's memory in these tests.
const PEER: u64 = 0x80_0000_0000;

/// A driver whose queues are in shared RAM, and a peer's memory that is not shared.
#[track_caller]
fn driver(daemon: &Daemon) -> DaemonDriver {
    let guest = crate::connect(daemon);
    guest.link.map((PEER, 1 << 20), None).unwrap();
    Driver::enabled(guest)
}

fn daemon() -> Daemon {
    start(&["--namespace", "ram=2M"])
}

fn is_read(request: &UpstreamRequest) -> bool {
    request.data.is_none()
}

#[test]
fn write_fetches_several_messages_of_32_kib_at_a_time() {
    let daemon = daemon();
    let mut driver = driver(&daemon);
    let asked = driver.link.upstream().clone();
    asked.answer_with(|_| Answer::Late);
    driver.submit_io(0x01, PEER, 256);
    asked.wait_for(4);
    driver.link.answer_late(0xab);
    assert_eq!(driver.wait(), SUCCESS);
    let seen = asked.seen();
    assert!(
        seen.iter()
            .all(|request| is_read(request) && request.len <= 32 << 10),
        "{seen:?}"
    );
    assert_eq!(
        seen.iter().map(|request| request.len).sum::<usize>(),
        128 << 10
    );
    driver.fill(0, 128 << 10);
    assert_eq!(driver.io(0x02, DATA, 256), SUCCESS);
    assert_eq!(driver.data(128 << 10), [0xab; 128 << 10]);
}

#[test]
fn a_read_brings_its_data_to_the_peer() {
    let daemon = daemon();
    let mut driver = driver(&daemon);
    driver.fill(0xcd, 64 << 10);
    assert_eq!(driver.io(0x01, DATA, 128), SUCCESS);
    let asked = driver.link.upstream().clone();
    asked.answer_with(|_| Answer::AllAs(0));
    assert_eq!(driver.io(0x02, PEER, 128), SUCCESS);
    let mut arrived = vec![0; 64 << 10];
    for request in asked.seen() {
        let at = (request.address - PEER) as usize;
        arrived[at..at + request.len].copy_from_slice(&request.data.unwrap());
    }
    assert_eq!(arrived, [0xcd; 64 << 10]);
}

#[test]
fn failed_request_is_a_data_transfer_error_without_effect() {
    for answer in [
        Answer::Refused(Errno::NODEV),
        Answer::Refused(Errno::TOOBIG),
        Answer::Nonsense,
    ] {
        let daemon = daemon();
        let mut driver = driver(&daemon);
        driver.fill(0x11, 128 << 10);
        assert_eq!(driver.io(0x01, DATA, 256), SUCCESS);
        let mut count = 0;
        let bad = answer.clone();
        driver.link.upstream().answer_with(move |_| {
            count += 1;
            if count == 3 {
                bad.clone()
            } else {
                Answer::AllAs(0x99)
            }
        });
        assert_eq!(
            driver.io(0x01, PEER, 256),
            sc::DATA_XFER_ERROR,
            "a write, {answer:?}"
        );
        let bad = answer.clone();
        driver.link.upstream().answer_with(move |_| bad.clone());
        assert_eq!(
            driver.io(0x02, PEER, 256),
            sc::DATA_XFER_ERROR,
            "a read, {answer:?}"
        );
        assert_eq!(driver.io(0x02, DATA, 256), SUCCESS);
        assert_eq!(driver.data(128 << 10), [0x11; 128 << 10], "{answer:?}");
    }
}

#[test]
fn registers_are_answered_while_a_request_is_not() {
    let daemon = daemon();
    let mut driver = driver(&daemon);
    let asked = driver.link.upstream().clone();
    asked.answer_with(|_| Answer::Late);
    driver.submit_io(0x01, PEER, 8);
    asked.wait_for(1);
    assert_eq!(driver.link.bytes(REGISTERS, 8), [0, 0, 2, 0]);
    driver.link.answer_late(0x77);
    assert_eq!(driver.wait(), SUCCESS);
}

#[test]
fn a_reset_ends_a_transfer_that_waits_for_the_client() {
    let unmapped = PEER + (1 << 20);
    for (opcode, at) in [(0x01, PEER), (0x02, unmapped)] {
        let daemon = start(&["--namespace", "ram=2M"]);
        let mut driver = self::driver(&daemon);
        let asked = driver.link.upstream().clone();
        asked.answer_with(|_| Answer::Late);
        // More than one request at once: 1 MiB, or the requests that follow the probe of an address
        // that is not mapped.
        driver.submit_io(opcode, at, 2048);
        let before = asked.wait_for(if at == PEER { 16 } else { 1 }).len();
        driver.link.reset();
        driver.link.answer_late(0x55);
        driver.ram.store(RAM, &[0; 0x8000]);
        driver.enable_polled();
        assert_eq!(driver.serial(), "test");
        assert_eq!(asked.seen().len(), before, "requests of before the reset");
        driver.fill(0xff, 4096);
        assert_eq!(driver.io(0x02, DATA, 8), SUCCESS);
        assert_eq!(driver.data(4096), [0; 4096], "the write has not come about");
    }
}

#[test]
fn client_hanging_up_in_a_transfer_leaves_a_working_daemon() {
    let daemon = daemon();
    let mut driver = self::driver(&daemon);
    driver.fill(0x42, 4096);
    assert_eq!(driver.io(0x01, DATA, 8), SUCCESS);
    let asked = driver.link.upstream().clone();
    asked.answer_with(|_| Answer::Late);
    let memory = driver.ram.file.clone();
    let mut completion = [0; 16];
    driver.submit_io(0x01, PEER, 8);
    asked.wait_for(1);
    driver.link.hang_up();
    drop(driver);
    let mut driver = self::driver(&daemon);
    driver.fill(0, 4096);
    assert_eq!(driver.io(0x02, DATA, 8), SUCCESS);
    assert_eq!(
        driver.data(4096),
        [0x42; 4096],
        "what was written before, and nothing else"
    );
    // There may or may not be time left to report the failure.
    memory.read_exact_at(&mut completion, 0x3010).unwrap();
    let status = u16::from_le_bytes([completion[14], completion[15]]);
    assert!(
        status == 0 || status >> 1 & 0x7ff == sc::DATA_XFER_ERROR,
        "{status:#x}"
    );
}

#[test]
fn memory_that_cannot_be_mapped_is_asked_for() {
    let daemon = daemon();
    let file = memory_file(RAM_BYTES, SealFlags::SEAL);
    let ram = GuestRam::from_file(file, 0, RAM, RAM_BYTES);
    let client = Client::connect(daemon.socket()).unwrap();
    let read_only = format!("/proc/self/fd/{}", ram.file.as_raw_fd());
    let read_only = File::open(read_only).unwrap();
    let mapped = client.map((RAM, RAM_BYTES), Some(read_only.as_fd()));
    mapped.unwrap();
    client.upstream().answer_from(vec![ram.clone()]);
    let mut driver = Driver::enabled(Guest { link: client, ram });
    let asked = driver.link.upstream().clone();
    assert_eq!(driver.serial(), "test");
    assert!(!asked.seen().is_empty());
}

#[test]
fn unsealed_memory_is_used_until_its_owner_cuts_it_short() {
    const UNSEALED: u64 = 0x9000_0000;
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(2 << 20).unwrap();
    let image = format!("file={}", image.path().display());
    for namespace in ["ram=2M", &image] {
        let daemon = start(&["--namespace", namespace]);
        let mut driver = driver(&daemon);
        let unsealed = memory_file(RAM_BYTES, SealFlags::empty());
        let lent = (UNSEALED, RAM_BYTES);
        driver.link.map(lent, Some(unsealed.as_fd())).unwrap();
        unsealed.write_all_at(&[0x5a; 64 << 10], 0).unwrap();
        assert_eq!(driver.io(0x01, UNSEALED, 128), SUCCESS);
        let cut = std::thread::spawn(move || unsealed.set_len(0).unwrap());
        for opcode in [0x01, 0x02] {
            wait_until("the loss of the memory", || {
                let status = driver.io(opcode, UNSEALED, 128);
                assert!(
                    [SUCCESS, sc::DATA_XFER_ERROR].contains(&status),
                    "{status:#x}"
                );
                (status == sc::DATA_XFER_ERROR).then_some(())
            });
        }
        cut.join().unwrap();
        assert_eq!(driver.io(0x02, UNSEALED + 0x3000, 8), sc::DATA_XFER_ERROR);
        assert_eq!(driver.io(0x02, DATA, 8), SUCCESS, "{namespace}");
        assert!(driver.link.upstream().seen().is_empty());
        drop(driver);
        let mut driver = self::driver(&daemon);
        driver.fill(0x11, 4096);
        assert_eq!(driver.io(0x01, DATA, 8), SUCCESS);
        let reports = daemon.stderr().matches("taken away").count();
        assert_eq!(
            reports,
            usize::from(namespace == "ram=2M"),
            "{}",
            daemon.stderr()
        );
    }
}

#[test]
fn lent_memory_takes_a_bounded_part_of_the_address_space() {
    const LENT: u64 = 1 << 50;
    let daemon = daemon();
    let mut driver = driver(&daemon);
    let sparse = || {
        let file = memory_file(RAM_BYTES, SealFlags::empty());
        file.set_len(1 << 62).unwrap();
        file
    };
    let all = (LENT, 1 << 47);
    let refused = driver.link.map(all, Some(sparse().as_fd()));
    assert_eq!(refused, Err(Errno::NOMEM));
    let pages = (0..1024).map(|page| (LENT + page * 0x2000, 0x1000));
    let lent: Vec<_> = pages
        .map(|page| driver.link.map(page, Some(sparse().as_fd())))
        .collect();
    assert!(lent.starts_with(&[Ok(()); 100]));
    assert_eq!(lent.last(), Some(&Err(Errno::NOMEM)));
    assert!(daemon.address_space_bytes() < 20 << 40);
    assert_eq!(driver.io(0x02, LENT, 8), SUCCESS);
    assert_eq!(
        driver.io(0x02, LENT + 1023 * 0x2000, 8),
        sc::DATA_XFER_ERROR
    );
    driver.link.unmap((LENT, 1 << 47)).unwrap();
    driver
        .link
        .map((LENT, 0x1000), Some(sparse().as_fd()))
        .unwrap();
    assert_eq!(driver.io(0x02, LENT, 8), SUCCESS);
}
