//! Creating and deleting queues with each parameter wrong in turn, and the resulting status (NVMe
//! Base 2.0, 5.4 to 5.7).

use std::time::Instant;

use peerbar_nvme_driver::{Controller, DmaMemory, DriverError, Registers};

use crate::driver::{DATA, ENABLED, disabled, enabled, enabled_with, queues, usual};
use crate::machine::{CC, CMB, Machine, TIMEOUT, config};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{
    Command, create_cq, create_sq, delete_cq, delete_sq, sc, set_feature,
};

/// A driver with queue pair 1 and memory for a second one.
fn refused(command: Command) -> u16 {
    enabled().code(0, command)
}

fn without_contiguity(mut command: Command) -> Command {
    command.dwords[1] &= !1;
    command
}

#[test]
fn a_queue_number_is_free_and_in_range() {
    for id in [0, 1, 65, u16::MAX] {
        assert_eq!(
            refused(create_cq(id, 4, 1, DATA)),
            sc::QID_INVALID,
            "CQ {id}"
        );
        assert_eq!(
            refused(create_sq(id, 4, 1, DATA)),
            sc::QID_INVALID,
            "SQ {id}"
        );
    }
}

#[test]
fn a_size_is_from_2_to_mqes() {
    for entries in [1, 2049, 65536] {
        assert_eq!(refused(create_cq(2, entries, 1, DATA)), sc::QUEUE_SIZE);
        assert_eq!(refused(create_sq(2, entries, 1, DATA)), sc::QUEUE_SIZE);
    }
    let mut driver = enabled();
    driver.create_pair(2, queues(DATA, DATA + 0x2_0000, 2048, 2048));
    driver.create_pair(3, queues(DATA + 0x4_0000, DATA + 0x5_0000, 2, 2));
}

#[test]
fn entry_sizes_are_set_before_the_first_queue_and_not_earlier() {
    let mut driver = disabled(&config());
    driver.start_enable_with(1);
    driver.wait_for_status(1, 1);
    assert_eq!(driver.code(0, create_cq(1, 4, 1, DATA)), sc::QUEUE_SIZE);
    driver.set_register(CC, 4 << 20 | 1);
    driver.ok(0, create_cq(1, 4, 1, DATA));
    let sq = create_sq(1, 4, 1, DATA + 0x1000);
    assert_eq!(driver.code(0, sq), sc::QUEUE_SIZE);
    driver.set_register(CC, ENABLED);
    driver.ok(0, sq);
}

#[test]
fn a_queue_is_contiguous_and_starts_at_a_page() {
    let off = DATA + 0x40;
    assert_eq!(refused(create_cq(2, 4, 1, off)), sc::PRP_INVALID_OFFSET);
    assert_eq!(refused(create_sq(2, 4, 1, off)), sc::PRP_INVALID_OFFSET);
    let cq = without_contiguity(create_cq(2, 4, 1, DATA));
    let sq = without_contiguity(create_sq(2, 4, 1, DATA));
    assert_eq!(refused(cq), sc::INVALID_FIELD);
    assert_eq!(refused(sq), sc::INVALID_FIELD);
}

#[test]
fn a_vector_is_one_of_those_that_there_are() {
    assert_eq!(refused(create_cq(2, 4, 65, DATA)), sc::INVALID_VECTOR);
    assert_eq!(refused(create_cq(2, 4, 64, DATA)), 0);
}

#[test]
fn a_submission_queue_names_a_completion_queue_that_exists() {
    assert_eq!(
        refused(create_sq(2, 4, 2, DATA)),
        sc::CQ_INVALID,
        "not created"
    );
    assert_eq!(refused(create_sq(2, 4, 0, DATA)), sc::QID_INVALID, "admin");
    assert_eq!(
        refused(create_sq(2, 4, 65, DATA)),
        sc::QID_INVALID,
        "no such"
    );
}

#[test]
fn a_completion_queue_goes_after_its_submission_queues() {
    let mut driver = enabled();
    assert_eq!(driver.code(0, delete_cq(1)), sc::INVALID_QUEUE);
    driver.ok(0, delete_sq(1));
    assert_eq!(driver.code(0, delete_sq(1)), sc::QID_INVALID);
    driver.ok(0, delete_cq(1));
    assert_eq!(driver.code(0, delete_cq(1)), sc::QID_INVALID);
    driver.create_pair(1, usual(1));
}

#[test]
fn admin_queues_cannot_be_deleted() {
    for id in [0, 65, u16::MAX] {
        assert_eq!(refused(delete_sq(id)), sc::QID_INVALID);
        assert_eq!(refused(delete_cq(id)), sc::QID_INVALID);
    }
}

#[test]
fn queues_beyond_what_was_granted_are_refused() {
    let mut driver = enabled();
    assert_eq!(
        driver.code(0, set_feature(7, 0)),
        sc::CMD_SEQ_ERROR,
        "in use"
    );
    driver.ok(0, delete_sq(1));
    driver.ok(0, delete_cq(1));
    assert_eq!(driver.code(0, set_feature(7, 0xffff)), sc::INVALID_FIELD);
    assert_eq!(driver.ok(0, set_feature(7, 0x00ff_00ff)), 0x003f_003f);
    assert_eq!(driver.ok(0, set_feature(7, 0x0001_0001)), 0x0001_0001);
    assert_eq!(driver.code(0, create_cq(3, 4, 1, DATA)), sc::QID_INVALID);
    driver.ok(0, create_cq(2, 4, 1, DATA));
}

#[test]
fn spare_queues_can_be_made_beside_those_asked_for() {
    let mut driver = enabled_with(&peerbar_nvme::Config {
        spare_queues: 2,
        ..config()
    });
    driver.ok(0, delete_sq(1));
    driver.ok(0, delete_cq(1));
    assert_eq!(driver.ok(0, set_feature(7, 0)), 0x0002_0002);
    for id in [1, 3] {
        driver.ok(0, create_cq(id, 4, 1, DATA));
        driver.ok(0, create_sq(id, 4, id, DATA + 0x1000));
    }
    assert_eq!(driver.code(0, create_cq(4, 4, 1, DATA)), sc::QID_INVALID);
}

#[test]
fn a_cmb_that_takes_no_queues_says_so() {
    let mut driver = enabled_with(&peerbar_nvme::Config {
        cmb_queues: false,
        cmb_legacy: false,
        ..config()
    });
    assert_eq!(driver.code(0, create_cq(2, 4, 1, CMB)), sc::CMB_INVALID_USE);
    assert_eq!(driver.code(0, create_sq(2, 4, 1, CMB)), sc::CMB_INVALID_USE);
}

#[test]
fn queues_made_for_others_work_until_deleted() {
    let machine = Machine::new(&config());
    let mut controller = Controller::enable(machine.clone(), machine.clone(), usual(0)).unwrap();
    let [tail, head] = controller.create_queues_at(3, usual(3)).unwrap();
    assert_eq!([tail, head], [0x1018, 0x101c]);
    // A Flush without a namespace fails, and so completes.
    machine.write_doorbell(tail, 1).unwrap();
    let completion = || machine.load64(usual(3).completion + 8).unwrap();
    let begun = Instant::now();
    while completion() >> 48 & 1 == 0 {
        assert!(begun.elapsed() < TIMEOUT, "no completion");
        std::thread::yield_now();
    }
    controller.delete_queues(3).unwrap();
    let again = controller.delete_queues(3).unwrap_err();
    assert!(matches!(again, DriverError::Command { .. }), "{again}");
    controller.create_queues_at(3, usual(3)).unwrap();
}
