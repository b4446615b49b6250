//! Get Log Page (NVMe Base 2.0, 5.16).

use crate::driver::{DATA, LIST, enabled};
use peerbar_rig::nvme::command::{Command, READ, blocks, get_log, sc};

const ERROR: u8 = 0x01;
const SMART: u8 = 0x02;

#[test]
fn the_pages_that_nvme_cli_reads_are_there_and_listed() {
    let mut driver = enabled();
    let listed = driver.fetch(get_log(0x00, 0, 1024), 1024);
    for (lid, len) in [
        (ERROR, 64),
        (SMART, 512),
        (3, 512),
        (4, 4096),
        (5, 4096),
        (0x12, 1024),
    ] {
        driver.fetch(get_log(lid, 0, len), len as usize);
        assert_eq!(listed[usize::from(lid) * 4] & 1, 1, "page {lid:#x}");
    }
    assert_eq!(listed[0x7f * 4] & 1, 0);
    assert_eq!(
        driver.code(0, get_log(0x7f, 0, 64).at(DATA, 0)),
        sc::INVALID_LOG_PAGE
    );
}

#[test]
fn smart_counts_commands_and_shows_a_sound_device() {
    let mut driver = enabled();
    for start in 0..3 {
        driver.load(start, 512);
    }
    driver.store(0, &[1; 512]);
    let page = driver.fetch(get_log(SMART, 0, 512), 512);
    assert_eq!(page[0], 0, "critical warning");
    assert_eq!(u16::from_le_bytes([page[1], page[2]]), 313, "temperature");
    assert_eq!((page[3], page[5]), (100, 0), "spare, used");
    assert_eq!((page[32], page[48]), (1, 1), "data units, rounded up");
    assert_eq!((page[64], page[80]), (3, 1), "host reads and writes");
}

#[test]
fn the_latest_failed_command_is_first_in_the_error_log() {
    let mut driver = enabled();
    driver.code(1, blocks(READ, 9000, 1));
    let failed = driver.run(1, blocks(READ, 9001, 1));
    let page = driver.fetch(get_log(ERROR, 0, 128), 128);
    let field = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    assert_eq!((field(0), field(64)), (2, 1), "error count");
    assert_eq!((field(8), field(10)), (1, failed.cid), "SQID and CID");
    assert_eq!(field(12) >> 1 & 0x7ff, sc::LBA_RANGE);
    assert_eq!((field(16), field(24)), (9001, 1), "LBA and NSID");
}

#[test]
fn a_part_of_a_page_starts_at_its_offset() {
    let mut driver = enabled();
    let whole = driver.fetch(get_log(5, 0, 4096), 4096);
    let part = driver.fetch(get_log(5, 1024, 1024), 1024);
    assert_eq!(part, whole[1024..2048]);
    assert!(part.contains(&1), "I/O commands are supported");
    let fits = driver.fetch(get_log(SMART, 508, 8), 8);
    assert_eq!(fits[4..], [0; 4], "nothing is beyond the end");
}

#[test]
fn an_offset_beyond_the_page_or_not_in_dwords_is_refused() {
    let mut driver = enabled();
    for offset in [516, 2, 1 << 32, u64::MAX - 3] {
        let code = driver.code(0, get_log(SMART, offset, 4).at(DATA, 0));
        assert_eq!(code, sc::INVALID_FIELD, "offset {offset:#x}");
    }
}

#[test]
fn a_page_longer_than_mdts_is_refused() {
    let mut driver = enabled();
    let len = 32 * 4096;
    let most = driver.prps(get_log(SMART, 0, len), DATA, len as usize, LIST);
    driver.ok(0, most);
    for len in [len + 4, 1 << 31] {
        assert_eq!(
            driver.code(0, get_log(SMART, 0, len).at(DATA, LIST)),
            sc::INVALID_FIELD
        );
    }
}

#[test]
fn the_effects_are_those_of_the_command_set_that_is_asked_for() {
    let mut driver = enabled();
    let page = driver.fetch(get_log(5, 0, 4096), 4096);
    let effect = |opcode: usize| page[opcode * 4] & 3;
    assert_eq!((effect(0x06), effect(0x80)), (1, 0), "Identify, not Format");
    assert_eq!((effect(256 + 1), effect(256 + 2)), (3, 1), "Write, Read");
    let zoned = Command {
        dwords: {
            let mut dwords = get_log(5, 0, 4096).dwords;
            dwords[4] = 2 << 24;
            dwords
        },
        ..get_log(5, 0, 4096).at(DATA, 0)
    };
    assert_eq!(driver.code(0, zoned), sc::INVALID_IOCS);
}
