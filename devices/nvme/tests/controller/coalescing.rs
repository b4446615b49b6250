//! Interrupt Coalescing and Interrupt Vector Configuration (NVMe Base 2.0, 5.27.1.6 and 5.27.1.7).
//! The exact time of a message is tested without a machine (`src/io_queue/interrupt_tests.rs`).

use std::time::{Duration, Instant};

use peerbar_nvme::{Config, Source};

use crate::driver::{DATA, Driver, ENABLED, enabled, enabled_with, queues, usual};
use crate::machine::{CC, MIB, PAGE, config};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{
    Command, FLUSH, VERIFY, blocks, delete_cq, delete_sq, get_feature, set_feature,
};

const COALESCING: u8 = 0x08;
const VECTOR_CONFIGURATION: u8 = 0x09;
/// A message for 256 completions, or after 25.5 ms.
const MOST: u32 = 0xffff;
const TIME: Duration = Duration::from_micros(25_500);
const DISABLED: u32 = 1 << 16;
const SHUTDOWN: u32 = 1 << 14;
const SHUTDOWN_STATUS: u32 = 3 << 2;
const SHUTDOWN_COMPLETE: u32 = 2 << 2;
const COMMANDS: u64 = 200;

fn flush() -> Command {
    Command::new(FLUSH, 1, &[])
}

/// Returns a driver whose completions are coalesced as much as possible, without earlier messages
/// left.
fn coalesced() -> Driver {
    let mut driver = enabled();
    driver.ok(0, set_feature(COALESCING, MOST));
    driver.take_vector(0);
    driver
}

/// Waits for at least `least` messages on a vector. Returns the number of messages.
#[track_caller]
fn messages(driver: &Driver, vector: usize, least: u64) -> u64 {
    let mut seen = 0;
    while seen < least {
        seen += driver.wait_for_vector(vector);
    }
    seen
}

#[test]
fn a_completion_that_no_other_follows_gets_its_message() {
    let mut driver = coalesced();
    for _ in 0..3 {
        driver.submit(1, flush());
        driver.wait_for_vector(1);
        assert_eq!(driver.take(1).code(), 0);
    }
}

#[test]
fn completions_share_messages_unless_their_vector_disables_it() {
    let mut driver = coalesced();
    driver.create_pair(2, usual(2));
    driver.ok(0, set_feature(VECTOR_CONFIGURATION, DISABLED | 2));
    let start = Instant::now();
    for _ in 0..COMMANDS {
        for queue in [1, 2] {
            driver.submit(queue, flush());
            driver.take_silently(queue);
        }
        // Later, so that entries that have been taken need no message.
        for queue in [1, 2] {
            driver.acknowledge(queue);
        }
    }
    assert_eq!(messages(&driver, 2, COMMANDS), COMMANDS);
    driver.submit(1, flush());
    let shared = messages(&driver, 1, 1);
    // This holds on a machine of any speed: the completions are too few for the threshold, so each
    // has waited its time.
    let waited = TIME * u32::try_from(shared).unwrap();
    assert!(waited <= start.elapsed(), "{shared} messages");
}

/// 7 batches of commands, which without coalescing would cause as many messages. The namespace is
/// in memory: with an image, the kernel would decide when commands end.
#[test]
fn completions_share_messages_until_the_last_one_is_answered() {
    /// The time for which a message waits for the response to the previous one.
    const TIME: Duration = Duration::from_micros(100);
    let mut driver = enabled_with(&Config {
        namespaces: vec![Source::Ram(MIB)],
        ..config()
    });
    driver.create_pair(2, queues(DATA, DATA + 4 * PAGE, 256, 256));
    for _ in 0..COMMANDS {
        driver.put(2, blocks(VERIFY, 0, 1));
    }
    let start = Instant::now();
    driver.ring(2);
    for _ in 0..COMMANDS {
        assert_eq!(driver.take_silently(2).code(), 0);
    }
    let shared = messages(&driver, 2, 2);
    // This holds on a machine of any speed: each has waited its time except the first one, and the
    // last one, because no work is left.
    let waited = TIME * u32::try_from(shared - 2).unwrap();
    assert!(waited <= start.elapsed(), "{shared} messages");
}

#[test]
fn completions_of_the_admin_queue_are_never_held_back() {
    let mut driver = coalesced();
    for _ in 0..COMMANDS {
        driver.ok(0, get_feature(COALESCING, 0, 0));
    }
    // The previous message may still have been on its way when the test looked for it.
    let seen = messages(&driver, 0, COMMANDS);
    assert!((COMMANDS..=COMMANDS + 1).contains(&seen), "{seen} messages");
}

#[test]
fn deleted_queue_sends_its_held_back_interrupt() {
    let mut driver = coalesced();
    driver.submit(1, flush());
    driver.take_silently(1);
    driver.ok(0, delete_sq(1));
    driver.ok(0, delete_cq(1));
    assert!(driver.take_vector(1));
}

#[test]
fn shutdown_sends_a_held_back_interrupt() {
    let mut driver = coalesced();
    driver.submit(1, flush());
    driver.take_silently(1);
    driver.set_register(CC, ENABLED | SHUTDOWN);
    driver.wait_for_status(SHUTDOWN_STATUS, SHUTDOWN_COMPLETE);
    assert!(driver.take_vector(1));
}

#[test]
fn controller_reset_ends_coalescing() {
    let mut driver = coalesced();
    driver.disable();
    driver.bring_up();
    driver.take_vector(1);
    for _ in 0..COMMANDS {
        driver.run(1, flush());
    }
    assert_eq!(messages(&driver, 1, COMMANDS), COMMANDS);
}
