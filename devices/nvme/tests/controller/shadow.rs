//! Doorbells in the guest's memory (NVMe Base 2.0, 5.8).

use std::time::{Duration, Instant};

use peerbar_nvme::{Config, PollPolicy};

use crate::driver::{DATA, Driver, LIST, enabled_with, queues, usual};
use crate::machine::{RAM, RAM_BYTES, config};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{
    Command, FLUSH, READ, blocks, delete_cq, delete_sq, doorbell_buffer, identify, sc,
};

fn config_with(poll: PollPolicy) -> Config {
    Config { poll, ..config() }
}

fn driver() -> Driver {
    let mut driver = enabled_with(&config_with(PollPolicy::Adaptive));
    driver.use_shadow_doorbells();
    driver
}

fn flush() -> Command {
    Command::new(FLUSH, 1, &[])
}

#[test]
fn shadow_doorbell_reaches_a_worker_awake_or_asleep() {
    let mut driver = driver();
    for round in 0..3000u32 {
        driver.ok(1, flush());
        for _ in 0..round % 64 * 50 {
            std::hint::spin_loop();
        }
    }
}

/// Submits `count` commands to queue 1 one by one, so slowly that the worker may wait for others.
/// Takes none of their completions.
fn submit_slowly(driver: &mut Driver, count: usize) -> Vec<u16> {
    let submit = |_| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(10) {
            std::hint::spin_loop();
        }
        driver.submit(1, flush())
    };
    (0..count).map(submit).collect()
}

#[test]
fn batched_commands_are_executed_however_few_they_are() {
    let mut driver = driver();
    for round in 0..200 {
        let mut cids = submit_slowly(&mut driver, 1 + round % 15);
        let mut taken: Vec<u16> = cids.iter().map(|_| driver.take(1).cid).collect();
        // Flushes of images end in any order.
        taken.sort_unstable();
        cids.sort_unstable();
        assert_eq!(taken, cids);
    }
}

#[test]
fn a_reset_waits_for_no_others() {
    let mut driver = driver();
    for _ in 0..20 {
        submit_slowly(&mut driver, 15);
        driver.disable();
        driver.bring_up();
        driver.use_shadow_doorbells();
    }
    driver.ok(1, flush());
}

#[test]
fn shadow_doorbells_are_offered_with_adaptive_polling_only() {
    for (poll, offered) in [
        (PollPolicy::Never, false),
        (PollPolicy::Adaptive, true),
        (PollPolicy::Always, false),
    ] {
        let mut driver = enabled_with(&config_with(poll));
        let data = driver.fetch(identify(1, 0), 4096);
        assert_eq!(data[257] & 1 == 1, offered, "OACS bit 8 with {poll}");
        let code = driver.code(0, doorbell_buffer(DATA, LIST));
        let expected = if offered { 0 } else { sc::INVALID_OPCODE };
        assert_eq!(code, expected, "{poll}");
    }
}

#[test]
fn shadow_doorbells_are_not_offered_with_the_intx_pin() {
    let mut driver = enabled_with(&config_with(PollPolicy::Adaptive));
    let _pin = driver.use_pin();
    let data = driver.fetch(identify(1, 0), 4096);
    assert_eq!(data[257] & 1, 0, "OACS bit 8");
    assert_eq!(
        driver.code(0, doorbell_buffer(DATA, LIST)),
        sc::INVALID_OPCODE
    );
}

#[test]
fn invalid_shadow_pages_are_refused_and_registers_still_work() {
    let mut driver = enabled_with(&config_with(PollPolicy::Adaptive));
    let end = RAM + RAM_BYTES;
    let read_only = end + 4096;
    driver.map_read_only(read_only, DATA);
    for (values, events, code) in [
        (DATA + 8, LIST, sc::PRP_INVALID_OFFSET),
        (DATA, LIST + 2048, sc::PRP_INVALID_OFFSET),
        (end, LIST, sc::INVALID_FIELD),
        (!0xfff, LIST, sc::INVALID_FIELD),
        (DATA, end, sc::INVALID_FIELD),
        (DATA, !0xfff, sc::INVALID_FIELD),
        (DATA, read_only, sc::INVALID_FIELD),
    ] {
        assert_eq!(driver.code(0, doorbell_buffer(values, events)), code);
    }
    driver.set_register(0x1000 + 8, 0);
    driver.ok(1, flush());
}

#[test]
fn a_full_completion_queue_waits_for_its_head_in_memory() {
    let mut driver = driver();
    driver.create_pair(2, queues(DATA, DATA + 0x1000, 16, 4));
    let cids: Vec<u16> = (0..7).map(|_| driver.put(2, flush())).collect();
    driver.ring(2);
    let mut taken: Vec<u16> = (0..3).map(|_| driver.take_silently(2).cid).collect();
    while taken.len() < 7 {
        driver.acknowledge(2);
        taken.push(driver.take_silently(2).cid);
    }
    // Flushes of images end in any order.
    taken.sort_unstable();
    assert_eq!(taken, cids);
}

/// A peer knows nothing of the guest's buffer, so its doorbells are registers while the guest's are
/// in memory.
#[test]
fn queue_rung_by_registers_works_beside_shadow_doorbells() {
    let mut driver = driver();
    driver.create_pair(2, queues(DATA, DATA + 0x1000, 5, 4));
    driver.ring_by_registers(2);
    for round in 0..200u32 {
        driver.ok(2, flush());
        if round % 3 == 0 {
            driver.ok(1, flush());
        }
        for _ in 0..round % 64 * 50 {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn queues_come_and_go() {
    let mut driver = driver();
    for _ in 0..5 {
        driver.create_pair(2, usual(2));
        for _ in 0..20 {
            driver.ok(2, flush());
        }
        driver.ok(0, delete_sq(2));
        driver.ok(0, delete_cq(2));
    }
}

#[test]
fn memory_that_is_taken_away_is_fatal_until_a_reset() {
    let mut driver = driver();
    driver.ok(1, flush());
    driver.unmap(RAM + (2 << 20), 2 * 4096);
    driver.set_register(0x1000 + 8, 5);
    driver.wait_for_status(0b10, 0b10);
    driver.map(RAM + (2 << 20), 2 * 4096, true);
    driver.disable();
    driver.bring_up();
    driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
}

#[test]
fn unmapped_event_indexes_are_fatal() {
    let mut driver = driver();
    driver.ok(1, flush());
    driver.unmap(RAM + (2 << 20) + 4096, 4096);
    // The worker wakes, finds no work, and is about to sleep again.
    driver.set_register(0x1000 + 8, 0);
    driver.wait_for_status(0b10, 0b10);
}

#[test]
fn a_controller_reset_brings_the_registers_back() {
    let mut driver = driver();
    driver.ok(1, flush());
    driver.disable();
    driver.bring_up();
    for _ in 0..3 {
        driver.ok(1, flush());
    }
}
