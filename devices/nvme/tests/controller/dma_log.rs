//! The log of DMA by route.

use peerbar_nvme_spec::dma_log::{Completer, Direction, Entry, Purpose, Route};

use crate::driver::{DATA, Driver, LIST, disabled, enabled, queues};
use crate::machine::{self, CMB, RAM_BYTES, config};
use peerbar_rig::nvme::command::{READ, WRITE, blocks};

/// Returns the bytes of a purpose and direction by a route to a completer.
fn bytes(log: &[Entry], purpose: Purpose, direction: Direction, at: (Route, Completer)) -> u64 {
    log.iter()
        .filter(|entry| (entry.purpose, entry.direction) == (purpose, direction))
        .filter(|entry| (entry.route, entry.completer) == at)
        .map(|entry| entry.bytes)
        .sum()
}

const OWN: (Route, Completer) = (Route::OwnBar, Completer::OwnMemory);
const RAM: (Route, Completer) = (Route::GuestRam, Completer::GuestRam);

/// Returns a function for the increase of these bytes during `work`.
fn moved(
    driver: &mut Driver,
    work: impl FnOnce(&mut Driver),
) -> impl Fn(Purpose, Direction, (Route, Completer)) -> u64 {
    let before = driver.dma_log();
    work(driver);
    let after = driver.dma_log();
    move |purpose, direction, at| {
        bytes(&after, purpose, direction, at) - bytes(&before, purpose, direction, at)
    }
}

#[test]
fn data_in_the_cmb_counts_as_own_memory_to_the_byte() {
    let mut driver = enabled();
    driver.create_pair(2, queues(CMB, CMB + 0x1000, 16, 16));
    let moved = moved(&mut driver, |driver| {
        let len = 8 * 4096;
        let write = driver.prps(blocks(WRITE, 0, 64), CMB + 0x1_0000, len, CMB + 0x2000);
        driver.ok(2, write);
        driver.ok(2, blocks(READ, 3, 1).at(CMB + 0x3000, 0));
    });
    use Direction::{Read, Write};
    use Purpose::{Command, Completion, List, Payload};
    assert_eq!(moved(Payload, Read, OWN), 8 * 4096);
    assert_eq!(moved(Payload, Write, OWN), 512);
    assert_eq!(moved(List, Read, OWN), 7 * 8);
    assert_eq!(moved(Command, Read, OWN), 2 * 64);
    assert_eq!(moved(Completion, Write, OWN), 2 * 16);
    for purpose in [Payload, List] {
        for direction in [Read, Write] {
            assert_eq!(moved(purpose, direction, RAM), 0);
        }
    }
    // These are the admin queue's: the first log page's completion, the second's command.
    assert_eq!(moved(Command, Read, RAM), 64);
    assert_eq!(moved(Completion, Write, RAM), 16);
}

#[test]
fn data_in_guest_ram_is_guest_ram_and_never_own_memory() {
    let mut driver = enabled();
    let moved = moved(&mut driver, |driver| {
        let len = 4 * 4096;
        let read = driver.prps(blocks(READ, 0, 32), DATA, len, LIST);
        driver.ok(1, read);
    });
    assert_eq!(moved(Purpose::Payload, Direction::Write, RAM), 4 * 4096);
    assert_eq!(moved(Purpose::List, Direction::Read, RAM), 3 * 8);
    assert_eq!(moved(Purpose::Payload, Direction::Write, OWN), 0);
}

#[test]
fn a_transfer_that_fails_is_a_failure_and_no_byte() {
    let mut driver = enabled();
    let nowhere = 0x7000_0000_0000;
    driver.code(1, blocks(READ, 0, 1).at(nowhere, 0));
    let log = driver.dma_log();
    let failed: Vec<&Entry> = log.iter().filter(|entry| entry.failures > 0).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(
        (failed[0].purpose, failed[0].completer),
        (Purpose::Payload, Completer::None)
    );
    assert_eq!((failed[0].failures, failed[0].bytes), (1, 0));
}

#[test]
fn ats_log_counts_requests_hits_and_invalidations() {
    let mut driver = disabled(&config());
    driver.open_cmb();
    // The test unmaps all memory in the end, so the driver's doorbells must not lie there.
    driver.bring_up_by_registers();
    assert_eq!(driver.ats_log(), [1, 0, 0, 0, 0, 0, 0, 0]);
    driver.turn_ats_on();
    driver.ok(1, blocks(READ, 0, 8).at(DATA, 0));
    driver.ok(1, blocks(READ, 0, 8).at(DATA, 0));
    let log = driver.ats_log();
    let [
        version,
        on,
        hits,
        asked,
        refused,
        invalidated,
        evicted,
        cached,
    ] = log[..]
    else {
        panic!("{log:?}")
    };
    assert_eq!(
        (version, on, refused, invalidated, evicted),
        (1, 1, 0, 0, 0)
    );
    assert!(hits > 0 && asked == cached, "{log:?}");
    driver.unmap(machine::RAM, RAM_BYTES);
    driver.map(machine::RAM, RAM_BYTES, true);
    let after = driver.ats_log();
    assert!(after[5] >= cached, "{after:?}");
    assert_eq!(after[3], after[5] + after[7], "{after:?}");
}
