//! Errant addresses in a driver's commands: the client is asked, so that its IOMMU may log them,
//! and no memory changes.

use std::os::unix::fs::FileExt;

use peerbar_rig::nvme::command::{COMPARE, READ, WRITE, sc};
use peerbar_rig::nvme::{DATA, RAM, RAM_BYTES};

use crate::process::start;
use crate::{DaemonDriver, SUCCESS, driver};

/// Unmapped addresses: 0, one page before RAM and one past it, some beyond 48 and 52 bits, and the
/// last page of all.
const ERRANT: [u64; 7] = [
    0,
    RAM - 4096,
    RAM + RAM_BYTES,
    1 << 46,
    1 << 48,
    1 << 52,
    u64::MAX - 4095,
];

/// Guest RAM without the queues and the list of pages, which a command may change.
fn data(driver: &DaemonDriver) -> Vec<u8> {
    let mut bytes = vec![0; (RAM_BYTES - 0xa000) as usize];
    driver.ram.file.read_exact_at(&mut bytes, 0xa000).unwrap();
    bytes
}

#[test]
fn errant_address_is_asked_of_the_client_and_fails_the_command() {
    for opcode in [READ, WRITE, COMPARE] {
        let daemon = start(&["--namespace", "ram=2M"]);
        let mut driver = driver(&daemon);
        let before = data(&driver);
        for address in ERRANT {
            let said = driver.io(opcode, address, 8);
            assert_eq!(said, sc::DATA_XFER_ERROR, "{opcode:#x} at {address:#x}");
        }
        assert!(data(&driver) == before, "{opcode:#x}");
        let asked = driver.link.upstream().seen();
        let addresses: Vec<u64> = asked.iter().map(|request| request.address).collect();
        assert_eq!(addresses, ERRANT);
        assert!(asked.iter().all(|request| request.len <= 4), "{asked:?}");
        assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    }
}

#[test]
fn data_that_goes_astray_in_its_second_page_fails_the_command() {
    let daemon = start(&["--namespace", "ram=2M"]);
    let mut driver = driver(&daemon);
    let last = RAM + RAM_BYTES - 4096;
    for opcode in [READ, WRITE] {
        assert_eq!(driver.io(opcode, last, 16), sc::DATA_XFER_ERROR);
    }
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert_eq!(driver.data(4096), [0; 4096], "the write has not come about");
}

#[test]
fn a_seeded_fault_goes_astray_whatever_the_driver_asks() {
    let kinds = ["unmapped:8", "beyond-52-bits:16", "wraps:24"];
    let mut words = vec!["--namespace", "ram=2M"];
    words.extend(kinds.iter().flat_map(|kind| ["--seed-fault", kind]));
    let daemon = start(&words);
    let mut driver = driver(&daemon);
    let before = data(&driver);
    for block in [8, 16, 24] {
        for opcode in [READ, WRITE] {
            let said = driver.io_from(block, opcode, DATA, 8);
            assert_eq!(said, sc::DATA_XFER_ERROR, "{opcode:#x} of block {block}");
        }
    }
    assert!(data(&driver) == before);
    let asked = driver.link.upstream().seen();
    let addresses: Vec<u64> = asked.iter().map(|request| request.address).collect();
    let wrapping = u64::MAX - 2047;
    assert_eq!(
        addresses,
        [1 << 46, 1 << 46, 1 << 52, 1 << 52, wrapping, wrapping]
    );
    assert_eq!(driver.io_from(32, READ, DATA, 8), SUCCESS);
}
