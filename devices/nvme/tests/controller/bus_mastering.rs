//! Bus mastering that the guest turns off and on while commands are in progress, as in blktests'
//! block/011: the function keeps its requests until it may issue them (PCIe Base 6.0, 7.5.1.1.3).

use std::time::{Duration, Instant};

use peerbar_nvme::{Config, PollPolicy};

use crate::driver::{DATA, Driver, LIST, enabled, enabled_with};
use crate::failures::CFS;
use crate::machine::{config, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{READ, blocks, identify};

/// Values of the command register, with memory space on.
const OFF: u16 = 0b010;
const ON: u16 = 0b110;

const CSTS: u64 = 0x1c;

/// Longer than a worker polls before it blocks.
const A_WHILE: Duration = Duration::from_millis(5);

/// Queue 1 reads the first block, and rings its doorbell without bus mastering. Returns the
/// command's number.
fn ring_while_off(driver: &mut Driver) -> u16 {
    driver.store(0, &pattern(512, 35));
    driver.write(DATA, &[0; 512]);
    let cid = driver.put(1, blocks(READ, 0, 1).at(DATA, 0));
    driver.set_command(OFF);
    driver.take_vector(1);
    driver.ring(1);
    cid
}

/// Fails if anything changes for a while, or if the controller fails.
fn nothing_moves(driver: &mut Driver) {
    let (before, start) = (driver.ram_image(), Instant::now());
    while start.elapsed() < A_WHILE {
        assert_eq!(driver.register(CSTS) & CFS, 0);
    }
    assert!(driver.ram_image() == before, "no byte of guest RAM changes");
    assert!(!driver.take_vector(1) && driver.poll(1).is_none());
}

#[test]
fn a_command_rung_while_it_is_off_is_fetched_once_it_is_on() {
    for poll in [PollPolicy::Never, PollPolicy::Adaptive, PollPolicy::Always] {
        let mut driver = enabled_with(&Config { poll, ..config() });
        driver.ring_by_registers(1);
        let cid = ring_while_off(&mut driver);
        nothing_moves(&mut driver);
        driver.set_command(ON);
        driver.wait_for_vector(1);
        let done = driver.take(1);
        assert_eq!((done.cid, done.code()), (cid, 0), "{poll}");
        assert_eq!(driver.read(DATA, 512), pattern(512, 35));
    }
}

#[test]
fn doorbells_in_memory_that_is_out_of_reach_are_read_once_it_is_on() {
    let mut driver = enabled_with(&Config {
        poll: PollPolicy::Adaptive,
        ..config()
    });
    driver.use_shadow_doorbells();
    // The guest writes the register only if the event index asks for it. Once bus mastering is on,
    // the worker reads the buffer.
    let cid = ring_while_off(&mut driver);
    driver.set_command(ON);
    let done = driver.take(1);
    assert_eq!((done.cid, done.code()), (cid, 0));
    assert_eq!(driver.read(DATA, 512), pattern(512, 35));
}

#[test]
fn an_admin_command_rung_while_it_is_off_is_fetched_once_it_is_on() {
    let mut driver = enabled();
    let cid = driver.put(0, identify(1, 0).at(LIST, 0));
    driver.set_command(OFF);
    driver.ring(0);
    nothing_moves(&mut driver);
    driver.take_vector(0);
    driver.set_command(ON);
    driver.wait_for_vector(0);
    let done = driver.take(0);
    assert_eq!((done.cid, done.code()), (cid, 0));
}

/// Reads a block whose completion comes late, and turns bus mastering off in between. Returns the
/// command's number, or `None` if this was too slow: the completion came before.
fn late_completion(driver: &mut Driver, block: u64, by: Duration) -> Option<u16> {
    let (end, by) = (block + 8, by.as_millis());
    driver.inject(&format!(
        "delay completion read lba={block}..{end} by={by}ms"
    ));
    let late = driver.submit(1, blocks(READ, block, 1).at(DATA, 0));
    // A later command of its queue is complete, so it has been executed.
    let other = driver.submit(1, blocks(READ, 64, 1).at(LIST, 0));
    if driver.take(1).cid != other {
        driver.take(1);
        return None;
    }
    driver.set_command(OFF);
    driver.take_vector(1);
    let is_late = driver.poll(1).is_none();
    if !is_late {
        driver.set_command(ON);
    }
    is_late.then_some(late)
}

#[test]
fn a_completion_is_kept_while_it_is_off() {
    let mut driver = enabled();
    let first = Duration::from_millis(20);
    let mut attempts = (0..6).map(|attempt| (8 * u64::from(attempt), first * 4_u32.pow(attempt)));
    let (cid, by) = attempts
        .find_map(|(block, by)| Some((late_completion(&mut driver, block, by)?, by)))
        .expect("the completion never came after bus mastering was turned off");
    let off = Instant::now();
    while off.elapsed() < by {
        nothing_moves(&mut driver);
    }
    driver.set_command(ON);
    driver.wait_for_vector(1);
    let done = driver.take(1);
    assert_eq!((done.cid, done.code()), (cid, 0));
}

#[test]
fn the_guest_is_interrupted_again_for_what_it_has_left_to_take() {
    let mut driver = enabled();
    driver.submit(1, blocks(READ, 0, 1).at(DATA, 0));
    driver.wait_for_vector(1);
    // QEMU may have dropped that message, which arrived as bus mastering was turned off.
    driver.take_vector(1);
    driver.set_command(OFF);
    driver.set_command(ON);
    driver.wait_for_vector(1);
    assert_eq!(driver.take(1).code(), 0);
}

#[test]
fn no_command_is_lost_however_often_it_changes() {
    let mut driver = enabled();
    driver.store(0, &pattern(512, 36));
    for round in 0..200_u32 {
        let [io, admin] = [
            (1, blocks(READ, 0, 1).at(DATA, 0)),
            (0, identify(1, 0).at(LIST, 0)),
        ]
        .map(|(queue, command)| (queue, driver.submit(queue, command)));
        for _ in 0..round % 20 * 20 {
            std::hint::spin_loop();
        }
        driver.set_command(OFF);
        driver.set_command(ON);
        for (queue, cid) in [io, admin] {
            assert_eq!(driver.take(queue).cid, cid, "round {round}");
        }
        assert_eq!(driver.register(CSTS) & CFS, 0, "round {round}");
    }
}
