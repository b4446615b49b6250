//! Identify (NVMe Base 2.0, 5.17): every structure that Linux and nvme-cli ask for.

use crate::driver::enabled;
use peerbar_rig::nvme::command::{Command, identify, sc};

const EVERY: u32 = u32::MAX;

/// Identify with a command set.
fn of_command_set(cns: u8, nsid: u32, csi: u8) -> Command {
    let mut command = identify(cns, nsid);
    command.dwords[1] = u32::from(csi) << 24;
    command
}

fn number(data: &[u8], at: usize, bytes: usize) -> u64 {
    let mut number = [0; 8];
    number[..bytes].copy_from_slice(&data[at..at + bytes]);
    u64::from_le_bytes(number)
}

#[test]
fn a_namespace_has_its_size_and_block_size() {
    let mut driver = enabled();
    for (nsid, blocks) in [(1, 8192), (2, 2048)] {
        let data = driver.fetch(identify(0, nsid), 4096);
        assert_eq!(number(&data, 0, 8), blocks, "nsze");
        assert_eq!(number(&data, 8, 8), blocks, "ncap");
        let format = usize::from(data[26] & 0xf);
        assert_eq!(data[128 + 4 * format + 2], 9, "lbaf.ds");
    }
}

#[test]
fn the_controller_names_itself_and_its_limits() {
    let mut driver = enabled();
    let data = driver.fetch(identify(1, 0), 4096);
    assert_eq!(&data[4..24], b"disk0               ", "sn");
    assert_eq!(data[77], 5, "mdts");
    assert_eq!(number(&data, 80, 4), 0x0002_0000, "ver");
    assert_eq!(data[512], 0x66, "sqes");
    assert_eq!(data[513], 0x44, "cqes");
    assert_eq!(number(&data, 516, 4), 2, "nn");
    assert_eq!(number(&data, 536, 4) & 3, 0, "no SGLs");
    // Compare, Dataset Management, Write Zeroes, Select in Get Features, Timestamp, Verify.
    assert_eq!(number(&data, 520, 2), 0b1101_1101, "oncs");
    assert_eq!(data[525] & 1, 1, "vwc");
}

#[test]
fn lists_of_namespaces_start_above_the_nsid() {
    let mut driver = enabled();
    for cns in [0x02, 0x10] {
        for (above, expected) in [(0, [1, 2]), (1, [2, 0]), (2, [0, 0])] {
            let data = driver.fetch(identify(cns, above), 4096);
            let nsids = [number(&data, 0, 4), number(&data, 4, 4)];
            assert_eq!(nsids, expected, "CNS {cns:#x} above {above}");
            assert!(data[8..].iter().all(|byte| *byte == 0));
        }
        for none in [EVERY - 1, EVERY] {
            assert_eq!(driver.code(0, identify(cns, none)), sc::INVALID_NS);
        }
    }
}

#[test]
fn descriptors_are_those_that_linux_names_a_disk_by() {
    let mut driver = enabled();
    let first = driver.fetch(identify(3, 1), 4096);
    let second = driver.fetch(identify(3, 2), 4096);
    assert_eq!(first[..4], [3, 16, 0, 0], "NVME_NIDT_UUID");
    assert_eq!(first[20..25], [4, 1, 0, 0, 0], "NVME_NIDT_CSI, NVM");
    assert_eq!(first[25..29], [0; 4], "the end");
    assert_ne!(first[4..20], second[4..20]);
}

#[test]
fn structures_of_a_command_set_are_those_of_nvm_alone() {
    let mut driver = enabled();
    for (cns, nsid) in [(0x05, 1), (0x06, 0), (0x07, 0), (0x1a, 0), (0x1b, 1)] {
        driver.fetch(of_command_set(cns, nsid, 0), 4096);
        let code = driver.code(0, of_command_set(cns, nsid, 2));
        assert_eq!(code, sc::INVALID_IOCS, "CNS {cns:#x}");
    }
    let listed = driver.fetch(of_command_set(0x07, 0, 0), 4096);
    assert_eq!(listed[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_controller_finds_itself_by_its_id() {
    let mut driver = enabled();
    let id = number(&driver.fetch(identify(1, 0), 4096), 78, 2);
    let with_id = |cns: u8, id: u64| Command {
        dwords: [u32::from(cns) | (id as u32) << 16, 0, 0, 0, 0, 0],
        ..identify(cns, 1)
    };
    for cns in [0x12, 0x13] {
        for (from, expected) in [(0, [1, id]), (id, [1, id]), (id + 1, [0, 0])] {
            let list = driver.fetch(with_id(cns, from), 4096);
            assert_eq!([number(&list, 0, 2), number(&list, 2, 2)], expected);
        }
    }
    for id in [id, 0xffff] {
        let sets = driver.fetch(with_id(0x1c, id), 4096);
        assert_eq!(number(&sets, 0, 8), 1, "the NVM command set");
    }
    assert_eq!(
        driver.code(0, with_id(0x1c, id + 7)),
        0x11f,
        "NVME_SC_CTRL_ID_INVALID"
    );
}

#[test]
fn a_namespace_that_is_not_there_is_invalid() {
    let mut driver = enabled();
    for cns in [0x00, 0x03, 0x05, 0x08, 0x11, 0x12] {
        for nsid in [0, 3, EVERY] {
            let code = driver.code(0, identify(cns, nsid));
            assert_eq!(code, sc::INVALID_NS, "CNS {cns:#x} of {nsid:#x}");
        }
    }
}

#[test]
fn a_structure_that_is_not_there_is_an_invalid_field() {
    let mut driver = enabled();
    for cns in [0x09, 0x17, 0x55, 0xff] {
        assert_eq!(driver.code(0, identify(cns, 1)), sc::INVALID_FIELD);
    }
}
