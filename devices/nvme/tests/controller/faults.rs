//! Faults that are injected into commands and completions.

use std::time::{Duration, Instant};

use crate::command::{READ, VERIFY, WRITE, blocks, sc};
use crate::driver::{DATA, Driver};
use crate::machine::pattern;

fn driver(rule: &str) -> Driver {
    let driver = Driver::new();
    driver.inject(rule);
    driver
}

/// A read that no block range of these tests meets.
fn other_read(driver: &mut Driver) {
    driver.ok(1, blocks(READ, 2000, 1).at(DATA, 0));
}

#[test]
fn commands_on_a_bad_range_fail_with_the_status() {
    let mut driver = driver("fail command read lba=1000..1008 status=unrecovered-read-error");
    let data = pattern(4096, 41);
    driver.store(1000, &data);
    driver.write(DATA, &[0xa5; 4096]);
    for (start, count) in [(1000, 8), (1007, 8), (993, 8)] {
        let code = driver.code(1, blocks(READ, start, count).at(DATA, 0));
        assert_eq!(code, sc::UNRECOVERED_READ, "{start}");
    }
    assert_eq!(driver.read(DATA, 4096), [0xa5; 4096], "nothing is moved");
    for start in [992, 1008] {
        driver.ok(1, blocks(READ, start, 8).at(DATA, 0));
    }
    driver.ok(1, blocks(VERIFY, 1000, 8));
    driver.clear_faults();
    assert_eq!(driver.load(1000, 4096), data);
}

#[test]
fn dropped_completion_does_not_come_and_others_do() {
    let mut driver = driver("drop completion write limit=1");
    let data = pattern(512, 42);
    driver.write(DATA, &data);
    driver.submit(1, blocks(WRITE, 3, 1).at(DATA, 0));
    for _ in 0..40 {
        other_read(&mut driver);
    }
    assert_eq!(driver.load(3, 512), data, "the command is carried out");
    driver.ok(0, crate::command::delete_sq(1));
}

#[test]
fn duplicate_completion_comes_twice_with_one_command() {
    let mut driver = driver("duplicate completion limit=1");
    let cid = driver.submit(1, blocks(READ, 0, 1).at(DATA, 0));
    for _ in 0..2 {
        let entry = driver.take(1);
        assert_eq!((entry.cid, entry.code()), (cid, 0));
    }
    for _ in 0..40 {
        other_read(&mut driver);
    }
}

#[test]
fn delayed_command_or_completion_lets_others_pass() {
    for (rule, written) in [
        ("delay command write lba=0..8 by=300ms limit=1", false),
        ("delay completion write lba=0..8 by=300ms limit=1", true),
    ] {
        let mut driver = driver(rule);
        let (before, after) = (pattern(512, 43), pattern(512, 44));
        driver.store(100, &before);
        driver.write(DATA, &after);
        let start = Instant::now();
        let cid = driver.submit(1, blocks(WRITE, 3, 1).at(DATA, 0));
        driver.ok(1, blocks(READ, 3, 1).at(DATA + 4096, 0));
        let passed = start.elapsed() < Duration::from_millis(300);
        if passed {
            assert_eq!(driver.read(DATA + 4096, 512) == after, written, "{rule}");
        }
        let entry = driver.take(1);
        assert_eq!((entry.cid, entry.code()), (cid, 0), "{rule}");
        assert!(start.elapsed() >= Duration::from_millis(300), "{rule}");
        assert_eq!(driver.load(3, 512), after, "{rule}");
    }
}

#[test]
fn reset_does_not_wait_for_what_is_held_back() {
    for rule in ["delay command by=60s", "delay completion by=60s"] {
        let mut driver = driver(rule);
        driver.submit(1, blocks(READ, 0, 1).at(DATA, 0));
        driver.let_every_queue_have_a_turn();
        driver.disable();
        driver.clear_faults();
        driver.bring_up();
        for _ in 0..40 {
            other_read(&mut driver);
        }
    }
}
