//! Queues at work: many queues, full ones, and wrap-around (NVMe Base 2.0, 3.3).

use crate::driver::{DATA, enabled, queues, usual};
use peerbar_rig::nvme::command::{Command, FLUSH, delete_cq, delete_sq};

fn flush() -> Command {
    Command::new(FLUSH, 1, &[])
}

#[test]
fn each_of_64_pairs_has_its_vector() {
    let mut driver = enabled();
    for id in 2..=64 {
        driver.create_pair(id, usual(id));
    }
    driver.wait_for_vector(0);
    for id in 1..=64 {
        driver.ok(id, flush());
        driver.wait_for_vector(id.into());
        let others = (1..=64).any(|other| driver.take_vector(other));
        assert!(!others, "queue {id} raises its own vector alone");
    }
}

#[test]
fn entries_go_around_the_end_and_the_phase_turns() {
    let mut driver = enabled();
    driver.create_pair(2, queues(DATA, DATA + 0x1000, 5, 3));
    for count in 1..=31 {
        let entry = driver.run(2, flush());
        assert_eq!(entry.code(), 0);
        assert_eq!(entry.sqhd, count % 5, "SQHD after {count} commands");
    }
}

#[test]
fn a_full_completion_queue_waits_for_the_driver() {
    let mut driver = enabled();
    driver.create_pair(2, queues(DATA, DATA + 0x1000, 16, 4));
    let cids: Vec<u16> = (0..7).map(|_| driver.put(2, flush())).collect();
    driver.ring(2);
    let mut taken: Vec<u16> = (0..3).map(|_| driver.take_silently(2).cid).collect();
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.poll(2), None, "a fourth would overtake the driver");
    while taken.len() < 7 {
        driver.acknowledge(2);
        taken.push(driver.take_silently(2).cid);
    }
    // Flushes of images end in any order.
    taken.sort_unstable();
    assert_eq!(taken, cids);
}

#[test]
fn several_submission_queues_share_a_completion_queue() {
    let mut driver = enabled();
    driver.create_pair(2, usual(2));
    driver.ok(0, delete_sq(2));
    let shared = peerbar_rig::nvme::command::create_sq(2, 16, 1, usual(2).submission);
    driver.ok(0, shared);
    driver.know_pair(2, usual(2));
    let cid = driver.submit(2, flush());
    let entry = driver.take(1);
    assert_eq!((entry.sqid, entry.cid, entry.code()), (2, cid, 0));
    driver.ok(0, delete_cq(2));
    let in_use = driver.code(0, delete_cq(1));
    assert_eq!(in_use, peerbar_rig::nvme::command::sc::INVALID_QUEUE);
}

#[test]
fn a_fused_command_or_one_with_sgls_is_refused() {
    let mut driver = enabled();
    for flags in [0x01, 0x02, 0x40, 0x80] {
        let read =
            peerbar_rig::nvme::command::blocks(peerbar_rig::nvme::command::READ, 0, 1).at(DATA, 0);
        let code = driver.code(1, Command { flags, ..read });
        assert_eq!(
            code,
            peerbar_rig::nvme::command::sc::INVALID_FIELD,
            "flags {flags:#x}"
        );
    }
}
