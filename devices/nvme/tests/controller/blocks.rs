//! The commands of the NVM command set, at both block sizes (NVM Command Set 1.0, 3.2).

use peerbar_nvme::{Config, Source};

use crate::driver::{DATA, Driver, LIST, enabled, enabled_with};
use crate::machine::{MIB, config, pattern};
use peerbar_rig::nvme::command::{
    COMPARE, Command, DATASET_MANAGEMENT, FLUSH, READ, VERIFY, WRITE, WRITE_ZEROES, blocks, sc,
};

const FUA: u32 = 1 << 30;

/// A driver of one namespace of 1 MiB.
fn with_blocks_of(block_bytes: u32) -> Driver {
    enabled_with(&Config {
        block_bytes,
        namespaces: vec![crate::machine::source(MIB)],
        ..config()
    })
}

/// Returns the contents of `count` blocks from `start` on.
fn stored(driver: &mut Driver, start: u64, count: u32, block_bytes: usize) -> Vec<u8> {
    let len = count as usize * block_bytes;
    let read = driver.prps(blocks(READ, start, count), DATA, len, LIST);
    driver.ok(1, read);
    driver.read(DATA, len)
}

fn store(driver: &mut Driver, start: u64, data: &[u8], block_bytes: usize) {
    driver.write(DATA, data);
    let count = (data.len() / block_bytes) as u32;
    let write = driver.prps(blocks(WRITE, start, count), DATA, data.len(), LIST);
    driver.ok(1, write);
}

#[test]
fn what_is_written_is_read_and_compares() {
    for size in [512, 4096] {
        let mut driver = with_blocks_of(size as u32);
        let data = pattern(8 * size, 1);
        store(&mut driver, 3, &data, size);
        assert_eq!(stored(&mut driver, 3, 8, size), data);
        driver.ok(1, Command::new(FLUSH, 1, &[]));
        let compare = driver.prps(blocks(COMPARE, 3, 8), DATA, 8 * size, LIST);
        driver.ok(1, compare);
        driver.write(DATA + 8 * size as u64 - 1, &[!data[8 * size - 1]]);
        assert_eq!(driver.code(1, compare), sc::COMPARE_FAILED);
        driver.ok(1, blocks(VERIFY, 0, 16));
    }
}

#[test]
fn zeroes_are_written_to_exactly_those_blocks() {
    for size in [512, 4096] {
        let mut driver = with_blocks_of(size as u32);
        let data = pattern(4 * size, 2);
        store(&mut driver, 0, &data, size);
        driver.ok(1, blocks(WRITE_ZEROES, 1, 2));
        let mut expected = data;
        expected[size..3 * size].fill(0);
        assert_eq!(stored(&mut driver, 0, 4, size), expected);
    }
}

#[test]
fn deallocated_blocks_read_as_zeroes() {
    for size in [512, 4096] {
        let mut driver = with_blocks_of(size as u32);
        let data = pattern(8 * size, 3);
        store(&mut driver, 0, &data, size);
        let range = |start: u64, count: u32| {
            let mut bytes = [0; 16];
            bytes[4..8].copy_from_slice(&count.to_le_bytes());
            bytes[8..].copy_from_slice(&start.to_le_bytes());
            bytes
        };
        driver.write(DATA, &[range(1, 2), range(5, 1)].concat());
        let attributes = [0b011, 0b100];
        let dsm = |attribute| Command::new(DATASET_MANAGEMENT, 1, &[1, attribute]).at(DATA, 0);
        driver.ok(1, dsm(attributes[0]));
        assert_eq!(stored(&mut driver, 0, 8, size), data, "only hints");
        driver.write(DATA, &[range(1, 2), range(5, 1)].concat());
        driver.ok(1, dsm(attributes[1]));
        let mut expected = data;
        expected[size..3 * size].fill(0);
        expected[5 * size..6 * size].fill(0);
        assert_eq!(stored(&mut driver, 0, 8, size), expected);
        driver.write(DATA, &[range(0, 1), range(u64::MAX, 2)].concat());
        assert_eq!(driver.code(1, dsm(attributes[1])), sc::LBA_RANGE);
        assert_eq!(
            stored(&mut driver, 0, 8, size),
            expected,
            "nothing is done by half"
        );
    }
}

#[test]
fn blocks_beyond_the_end_are_out_of_range() {
    let mut driver = enabled();
    for opcode in [READ, WRITE, COMPARE, WRITE_ZEROES, VERIFY] {
        for (start, count) in [(8192, 1), (8191, 2), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            let command = blocks(opcode, start, count).at(DATA, 0);
            let code = driver.code(1, command);
            assert_eq!(code, sc::LBA_RANGE, "{opcode:#x} of {start:#x}+{count}");
        }
    }
}

#[test]
fn a_transfer_is_at_most_mdts_and_what_moves_no_data_is_not() {
    let mut driver = enabled();
    for opcode in [READ, WRITE, COMPARE] {
        let most = driver.prps(blocks(opcode, 0, 256), DATA, 256 * 512, LIST);
        driver.ok(1, most);
        let more = driver.prps(blocks(opcode, 0, 257), DATA, 257 * 512, LIST);
        assert_eq!(driver.code(1, more), sc::INVALID_FIELD, "{opcode:#x}");
    }
    driver.ok(1, blocks(WRITE_ZEROES, 0, 8192));
    driver.ok(1, blocks(VERIFY, 0, 8192));
}

#[test]
fn a_write_with_fua_is_in_the_image_when_it_completes() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(MIB).unwrap();
    let mut driver = enabled_with(&Config {
        namespaces: vec![Source::File(image.path().into())],
        ..config()
    });
    let data = pattern(512, 4);
    driver.write(DATA, &data);
    let mut write = blocks(WRITE, 7, 1).at(DATA, 0);
    write.dwords[2] |= FUA;
    driver.ok(1, write);
    let bytes = std::fs::read(image.path()).unwrap();
    assert_eq!(bytes[7 * 512..8 * 512], data);
}

#[test]
fn namespaces_are_apart_and_a_wrong_one_is_invalid() {
    let mut driver = enabled();
    driver.store(0, &pattern(512, 5));
    let second = Command {
        nsid: 2,
        ..blocks(READ, 0, 1).at(DATA, 0)
    };
    driver.ok(1, second);
    assert_eq!(driver.read(DATA, 512), [0; 512]);
    for nsid in [0, 3, u32::MAX] {
        for opcode in [
            READ,
            WRITE,
            COMPARE,
            VERIFY,
            WRITE_ZEROES,
            DATASET_MANAGEMENT,
        ] {
            let command = Command {
                nsid,
                ..blocks(opcode, 0, 1).at(DATA, 0)
            };
            assert_eq!(
                driver.code(1, command),
                sc::INVALID_NS,
                "{opcode:#x} {nsid:#x}"
            );
        }
    }
    driver.ok(1, Command::new(FLUSH, u32::MAX, &[]));
    assert_eq!(driver.code(1, Command::new(FLUSH, 0, &[])), sc::INVALID_NS);
}

#[test]
fn a_command_that_is_not_there_is_an_invalid_opcode() {
    let mut driver = enabled();
    for opcode in [0x04, 0x0d, 0x19, 0x7f, 0xff] {
        assert_eq!(driver.code(1, blocks(opcode, 0, 1)), sc::INVALID_OPCODE);
    }
    for opcode in [0x03, 0x0d, 0x18, 0x7d, 0x80, 0xff] {
        assert_eq!(
            driver.code(0, Command::new(opcode, 0, &[])),
            sc::INVALID_OPCODE
        );
    }
}
