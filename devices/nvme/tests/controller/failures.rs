//! A DMA that fails: the command fails with Data Transfer Error and changes nothing; a queue that
//! fails stops the controller until it is reset (NVMe Base 2.0, 9.5).

use peerbar_nvme::{Config, FaultKind, SeededFault, Source};

use crate::driver::{DATA, Driver, LIST, enabled, enabled_with, queues};
use crate::machine::{MIB, PAGE, RAM, config, pattern};
use peerbar_rig::nvme::command::{
    COMPARE, READ, WRITE, blocks, create_cq, create_sq, delete_sq, sc,
};

pub(crate) const CFS: u32 = 1 << 1;

/// Pages of data, of a list, or of data after the first, which the tests take away.
const GONE: u64 = DATA + 0x10_0000;

#[test]
fn memory_that_is_not_there_is_a_data_transfer_error() {
    let mut driver = enabled();
    driver.unmap(GONE, PAGE);
    for opcode in [READ, WRITE, COMPARE] {
        for address in [GONE, 0, u64::MAX - 0xfff, 0x7000_0000_0000] {
            let code = driver.code(1, blocks(opcode, 0, 1).at(address, 0));
            assert_eq!(code, sc::DATA_XFER_ERROR, "{opcode:#x} at {address:#x}");
        }
    }
    driver.map(GONE, PAGE, true);
    driver.ok(1, blocks(READ, 0, 1).at(GONE, 0));
}

#[test]
fn a_write_that_fails_in_the_middle_changes_no_block() {
    let mut driver = enabled();
    let len = 8 * 4096;
    let before = pattern(len, 31);
    driver.store(0, &before);
    driver.write(GONE - 3 * PAGE, &pattern(len, 32));
    driver.unmap(GONE, PAGE);
    let write = driver.prps(blocks(WRITE, 0, 64), GONE - 3 * PAGE, len, LIST);
    assert_eq!(driver.code(1, write), sc::DATA_XFER_ERROR);
    assert_eq!(driver.load(0, len), before);
}

#[test]
fn a_list_that_is_not_there_is_a_data_transfer_error() {
    let mut driver = enabled();
    driver.unmap(GONE, PAGE);
    for opcode in [READ, WRITE] {
        let command = blocks(opcode, 0, 24).at(DATA, GONE);
        assert_eq!(driver.code(1, command), sc::DATA_XFER_ERROR);
    }
}

#[test]
fn memory_that_is_read_only_is_read_and_never_written() {
    let mut driver = enabled();
    let data = pattern(512, 33);
    driver.write(GONE, &data);
    driver.unmap(GONE, PAGE);
    driver.map(GONE, PAGE, false);
    driver.ok(1, blocks(WRITE, 4, 1).at(GONE, 0));
    driver.store(5, &pattern(512, 34));
    assert_eq!(
        driver.code(1, blocks(READ, 5, 1).at(GONE, 0)),
        sc::DATA_XFER_ERROR
    );
    assert_eq!(driver.read(GONE, 512), data);
    assert_eq!(driver.load(4, 512), data);
}

/// Creates queues with the number 2 whose commands cannot be fetched.
pub(crate) fn create_failing_pair(driver: &mut Driver) {
    driver.create_pair(2, queues(GONE, DATA + 0x1_0000, 16, 16));
    driver.unmap(GONE, PAGE);
}

/// Makes the controller fail by those queues.
pub(crate) fn fail(driver: &mut Driver) {
    driver.submit(2, blocks(READ, 0, 1).at(DATA, 0));
    driver.wait_for_status(CFS, CFS);
}

#[test]
fn a_command_that_cannot_be_fetched_is_fatal_until_a_reset() {
    let mut driver = enabled();
    create_failing_pair(&mut driver);
    fail(&mut driver);
    driver.map(GONE, PAGE, true);
    recovers(&mut driver);
}

#[test]
fn queue_with_commands_in_progress_is_not_deleted_on_failure() {
    let mut driver = enabled();
    create_failing_pair(&mut driver);
    driver.inject("delay command write lba=0..8 by=60s");
    driver.submit(1, blocks(WRITE, 0, 1).at(DATA, 0));
    // A later command of its queue is complete, so it has begun.
    driver.ok(1, blocks(READ, 64, 1).at(LIST, 0));
    driver.submit(0, delete_sq(1));
    fail(&mut driver);
    driver.disable();
    assert!(
        driver.poll(0).is_none(),
        "the memory of its command is in use"
    );
    driver.clear_faults();
    driver.map(GONE, PAGE, true);
    recovers(&mut driver);
}

#[test]
fn a_completion_that_cannot_be_posted_is_fatal_until_a_reset() {
    let mut driver = enabled();
    driver.ok(0, create_cq(2, 16, 2, 0x7000_0000_0000));
    driver.ok(0, create_sq(2, 16, 2, DATA));
    driver.write(DATA, &blocks(READ, 0, 1).at(LIST, 0).encode(1));
    driver.write_doorbell(0x1010, 1);
    driver.wait_for_status(CFS, CFS);
    recovers(&mut driver);
}

/// Checks that a controller reset clears CSTS.CFS, and that the controller works again.
fn recovers(driver: &mut Driver) {
    driver.disable();
    driver.wait_for_status(CFS, 0);
    driver.bring_up();
    let data = pattern(512, 36);
    driver.store(7, &data);
    assert_eq!(driver.load(7, 512), data);
}

#[test]
fn unmapped_memory_is_not_touched_and_fails_its_commands() {
    let mut driver = enabled();
    let len = 128 << 10;
    driver.store(0, &pattern(len, 40));
    driver.create_pair(2, queues(DATA, DATA + 0x1_0000, 256, 256));
    let (first, rest) = (DATA + 0x2_0000, PAGE * 7);
    let read = driver.prps(blocks(READ, 0, 256), first, len, LIST);
    for _ in 0..200 {
        driver.put(2, read);
    }
    driver.ring(2);
    let mut codes = vec![driver.take_silently(2).code()];
    driver.unmap(first + rest, PAGE);
    let page = driver.read(first + rest, PAGE as usize);
    driver.write(first + rest, &[0xa5; PAGE as usize]);
    while codes.len() < 200 {
        codes.push(driver.take_silently(2).code());
    }
    assert_eq!(
        driver.read(first + rest, PAGE as usize),
        [0xa5; PAGE as usize]
    );
    let lost = |code: &u16| *code == sc::DATA_XFER_ERROR;
    let succeeded = |code: &u16| *code == 0;
    assert!(codes.iter().all(|code| lost(code) || succeeded(code)));
    if codes.iter().any(succeeded) {
        let offset = rest as usize;
        assert!(page == pattern(len, 40)[offset..offset + PAGE as usize]);
    }
    driver.map(first + rest, PAGE, true);
    driver.ok(2, read);
}

#[test]
fn blocks_lost_by_an_image_are_unrecovered_others_are_read() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(MIB).unwrap();
    for io_uring in [true, false] {
        let mut driver = enabled_with(&Config {
            namespaces: vec![Source::File(image.path().into())],
            io_uring,
            ..config()
        });
        let data = pattern(8192, 39);
        driver.store(0, &data);
        image.as_file().set_len(6000).unwrap();
        let read = driver.prps(blocks(READ, 0, 16), DATA, 8192, LIST);
        assert_eq!(driver.code(1, read), sc::UNRECOVERED_READ);
        assert_eq!(driver.load(0, 4096), data[..4096]);
        image.as_file().set_len(MIB).unwrap();
    }
}

#[test]
fn a_seeded_fault_fails_the_commands_of_its_block_and_no_other() {
    let seeded = [
        (FaultKind::Unmapped, 8),
        (FaultKind::Beyond52Bits, 16),
        (FaultKind::Wraps, 24),
    ];
    let mut driver = enabled_with(&Config {
        seeded_faults: seeded
            .map(|(kind, block)| SeededFault { kind, block })
            .to_vec(),
        ..config()
    });
    let data = pattern(16384, 37);
    driver.store(0, &data);
    driver.write(DATA, &pattern(4096, 38));
    for block in seeded.map(|(_, block)| block) {
        for opcode in [READ, WRITE, COMPARE] {
            let before = driver.ram_image();
            let code = driver.code(1, blocks(opcode, block, 2).at(DATA, 0));
            assert_eq!(code, sc::DATA_XFER_ERROR, "{opcode:#x} of block {block}");
            let data_is_as_before =
                driver.read(DATA, 4096) == before[(DATA - RAM) as usize..][..4096];
            assert!(data_is_as_before, "{opcode:#x} of block {block}");
        }
        driver.ok(1, blocks(READ, block + 1, 1).at(DATA + 4096, 0));
    }
    assert_eq!(driver.load(0, 16384), data);
}
