//! Faults that are injected into commands and completions.

use std::time::{Duration, Instant};

use peerbar_nvme::Config;

use crate::driver::{DATA, Driver, enabled, enabled_with};
use crate::failures::{create_failing_pair, fail};
use crate::machine::{PAGE, TIMEOUT, config, pattern};
use peerbar_rig::nvme::command::{READ, VERIFY, WRITE, blocks, get_feature, identify, sc};

fn driver(rule: &str) -> Driver {
    let driver = enabled();
    driver.inject(rule);
    driver
}

/// A read that does not meet the block ranges of these tests.
fn other_read(driver: &mut Driver) {
    driver.ok(1, blocks(READ, 2000, 1).at(DATA + 0x2000, 0));
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
    // An image may be read before it is written.
    let start = Instant::now();
    let read = blocks(READ, 3, 1).at(DATA + 0x1000, 0);
    while driver.read(DATA + 0x1000, 512) != data {
        driver.ok(1, read);
        assert!(start.elapsed() < TIMEOUT, "it is not carried out");
    }
    driver.ok(0, peerbar_rig::nvme::command::delete_sq(1));
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
    for subject in ["command", "completion"] {
        // Due after this test.
        let mut driver = driver(&format!("delay {subject} write lba=0..8 by=60s limit=1"));
        let data = pattern(512, 44);
        driver.write(DATA, &data);
        driver.submit(1, blocks(WRITE, 3, 1).at(DATA, 0));
        for _ in 0..40 {
            driver.ok(1, blocks(READ, 3, 1).at(DATA + 4096, 0));
        }
        if subject == "command" {
            assert_ne!(driver.read(DATA + 4096, 512), data, "it has not begun");
        }
    }
}

#[test]
fn delayed_command_or_completion_comes_when_due() {
    for subject in ["command", "completion"] {
        let rule = &format!("delay {subject} write lba=0..8 by=20ms limit=1");
        let mut driver = driver(rule);
        let data = pattern(512, 44);
        driver.write(DATA, &data);
        let start = Instant::now();
        let cid = driver.submit(1, blocks(WRITE, 3, 1).at(DATA, 0));
        let entry = driver.take(1);
        assert_eq!((entry.cid, entry.code()), (cid, 0), "{rule}");
        assert!(start.elapsed() >= Duration::from_millis(20), "{rule}");
        assert_eq!(driver.load(3, 512), data, "{rule}");
    }
}

/// Makes queue 1 read blocks 0 to 7 to [`DATA`], which must not change yet. Takes the completion,
/// and does not free its entry.
fn read_reordered(driver: &mut Driver) -> Vec<u8> {
    let data = pattern(4096, 48);
    driver.store(0, &data);
    driver.inject("reorder data lba=0..8 limit=1");
    driver.write(DATA, &[0xa5; 4096]);
    let cid = driver.submit(1, blocks(READ, 0, 8).at(DATA, 0));
    let entry = driver.take_silently(1);
    assert_eq!((entry.cid, entry.code()), (cid, 0));
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.read(DATA, 4096), [0xa5; 4096], "they come later");
    data
}

#[test]
fn reordered_data_follow_when_the_completion_is_taken() {
    let mut driver = enabled();
    let data = read_reordered(&mut driver);
    driver.acknowledge(1);
    let start = Instant::now();
    while driver.read(DATA, 4096) != data {
        assert!(start.elapsed() < TIMEOUT, "they do not come");
    }
    // The rule has reached its limit.
    driver.write(DATA, &[0xa5; 4096]);
    driver.ok(1, blocks(READ, 0, 8).at(DATA, 0));
    assert_eq!(driver.read(DATA, 4096), data);
}

#[test]
fn reordered_data_of_a_failed_controller_hold_up_no_unmap() {
    // Each queue has its own worker.
    let mut driver = enabled_with(&Config {
        workers: 2,
        ..config()
    });
    driver.use_shadow_doorbells();
    create_failing_pair(&mut driver);
    read_reordered(&mut driver);
    fail(&mut driver);
    driver.unmap(DATA, PAGE);
    driver.map(DATA, PAGE, true);
    driver.disable();
    driver.bring_up();
}

#[test]
fn reordered_data_do_not_outlive_a_reset_or_their_queue() {
    for is_reset in [true, false] {
        let mut driver = enabled();
        read_reordered(&mut driver);
        if is_reset {
            driver.disable();
            driver.bring_up();
        } else {
            driver.ok(0, peerbar_rig::nvme::command::delete_sq(1));
            driver.acknowledge(1);
            driver.ok(0, peerbar_rig::nvme::command::delete_cq(1));
            driver.create_pair(1, crate::driver::usual(1));
        }
        for _ in 0..40 {
            other_read(&mut driver);
        }
        driver.let_every_queue_have_a_turn();
        assert_eq!(driver.read(DATA, 4096), [0xa5; 4096], "reset: {is_reset}");
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

#[test]
fn dma_that_fails_is_a_data_transfer_error_and_moves_nothing() {
    let mut driver = enabled();
    driver.store(0, &pattern(4096, 45));
    driver.write(DATA, &[0xa5; 4096]);
    driver.inject("fail dma write route=guest-ram nth=2");
    let read = blocks(READ, 0, 8).at(DATA, 0);
    driver.ok(1, blocks(READ, 0, 1).at(DATA + 4096, 0));
    assert_eq!(driver.code(1, read), sc::DATA_XFER_ERROR);
    assert_eq!(driver.read(DATA, 4096), [0xa5; 4096]);
    driver.ok(1, read);
    assert_eq!(driver.read(DATA, 4096), pattern(4096, 45));
}

#[test]
fn dma_that_is_dropped_or_corrupted_seems_done() {
    let mut driver = enabled();
    let (before, after) = (pattern(512, 46), pattern(512, 47));
    driver.store(0, &before);
    driver.write(DATA, &[0xa5; 512]);
    driver.inject("drop dma write limit=1");
    driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
    assert_eq!(driver.read(DATA, 512), [0xa5; 512]);
    driver.clear_faults();
    driver.inject("corrupt dma bytes=3");
    let wrong = |data: &[u8]| {
        let mut data = data.to_vec();
        data[..3].iter_mut().for_each(|byte| *byte = !*byte);
        data
    };
    driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
    assert_eq!(driver.read(DATA, 512), wrong(&before));
    driver.write(DATA, &after);
    driver.ok(1, blocks(WRITE, 0, 1).at(DATA, 0));
    driver.clear_faults();
    assert_eq!(driver.load(0, 512), wrong(&after));
}

#[test]
fn dma_that_is_dropped_fails_a_command_that_reads_memory() {
    let mut driver = driver("drop dma read");
    let write = blocks(WRITE, 0, 1).at(DATA, 0);
    assert_eq!(driver.code(1, write), sc::DATA_XFER_ERROR);
    other_read(&mut driver);
}

#[test]
fn reset_with_a_delayed_dma_leaves_memory_alone() {
    let mut driver = driver("delay dma by=1s");
    driver.write(DATA, &[0xa5; 512]);
    driver.submit(1, blocks(READ, 0, 1).at(DATA, 0));
    driver.let_every_queue_have_a_turn();
    driver.reset_function();
    driver.clear_faults();
    driver.write(DATA, &[0xa5; 512]);
    driver.set_up_function();
    driver.bring_up();
    assert_eq!(driver.read(DATA, 512), [0xa5; 512]);
    other_read(&mut driver);
}

#[test]
fn dma_of_other_purposes_meets_rules_that_name_them() {
    let mut driver = driver("fail dma write purpose=completion limit=1");
    driver.submit(1, blocks(READ, 0, 1).at(DATA, 0));
    driver.wait_for_status(1 << 1, 1 << 1);
    driver.clear_faults();
    driver.disable();
    driver.bring_up();
    other_read(&mut driver);
}

#[test]
fn admin_commands_of_an_opcode_fail_with_the_status() {
    let mut driver = driver("fail admin-command identify nth=2 status=data-transfer-error");
    let feature = get_feature(0x07, 0, 0);
    let identify = identify(1, 0).at(DATA, 0);
    let codes = [identify, feature, identify, identify].map(|command| driver.code(0, command));
    assert_eq!(codes, [0, 0, sc::DATA_XFER_ERROR, 0]);
    other_read(&mut driver);
}

#[test]
fn delayed_admin_command_lets_others_pass() {
    // Due after this test.
    let mut driver = driver("delay admin-command identify by=60s limit=1");
    driver.write(DATA, &[0xa5; 4096]);
    driver.submit(0, identify(1, 0).at(DATA, 0));
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.read(DATA, 4096), [0xa5; 4096], "it has not begun");
}

#[test]
fn delayed_admin_command_comes_when_due() {
    let mut driver = driver("delay admin-command identify by=20ms limit=1");
    driver.write(DATA, &[0xa5; 4096]);
    let start = Instant::now();
    let cid = driver.submit(0, identify(1, 0).at(DATA, 0));
    let entry = driver.take(0);
    assert_eq!((entry.cid, entry.code()), (cid, 0));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_ne!(driver.read(DATA, 4096), [0xa5; 4096], "it is carried out");
}

#[test]
fn dropped_admin_command_does_nothing_and_a_reset_goes_on() {
    let mut driver = driver("drop admin-command identify");
    driver.inject("delay admin-command get-features by=60s limit=1");
    driver.write(DATA, &[0xa5; 4096]);
    for command in [identify(1, 0).at(DATA, 0), get_feature(0x07, 0, 0)] {
        driver.submit(0, command);
    }
    for _ in 0..40 {
        driver.ok(0, get_feature(0x07, 0, 0));
    }
    assert_eq!(driver.read(DATA, 4096), [0xa5; 4096]);
    driver.disable();
    driver.clear_faults();
    driver.bring_up();
    assert_eq!(driver.code(0, identify(1, 0).at(DATA, 0)), 0);
}
