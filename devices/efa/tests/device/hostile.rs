//! Actions that no driver takes.

use peerbar_efa_spec::admin::{ENTRY_BYTES, Opcode, Status};
use peerbar_efa_spec::registers::offset;
use proptest::prelude::*;

use crate::driver::{DEPTH, Driver, Link, MEMORY, RAM, REGISTERS};
use crate::objects::allocate;

const FATAL_ERROR: u32 = 0x20;

#[test]
fn opcodes_without_a_meaning_are_told_from_those_not_supported() {
    let mut driver = Driver::new();
    for opcode in 0..=u8::MAX {
        let expected = match opcode {
            1..=19 => continue,
            21 => Status::UnsupportedOpcode,
            20 | 25..=29 => continue,
            _ => Status::BadOpcode,
        };
        let entry = driver.entry(0, opcode, &[0xff; 60]);
        driver.submit(&entry);
        assert_eq!(
            driver.completion().status,
            expected as u8,
            "opcode {opcode}"
        );
    }
}

#[test]
fn command_of_the_wrong_round_is_malformed() {
    let mut driver = Driver::new();
    driver.entry_bytes = ENTRY_BYTES;
    driver.bring_up();
    let mut entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
    entry[3] ^= 1;
    driver.submit(&entry);
    driver.completion().expect(Status::MalformedRequest);
}

#[test]
fn command_with_a_damaged_byte_is_malformed() {
    let mut driver = Driver::new();
    let mut entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
    entry[100] = 1;
    driver.submit(&entry);
    driver.completion().expect(Status::MalformedRequest);
    allocate(&mut driver, Opcode::AllocPd);
}

#[test]
fn doorbell_beyond_the_queue_is_fatal_until_a_reset() {
    let mut driver = Driver::new();
    driver.write_register(offset::AQ_PROD_DB, u32::from(DEPTH) + 1);
    driver.wait_for_register(offset::DEV_STS, |status| status & FATAL_ERROR != 0);
    driver.bring_up();
    assert_eq!(driver.read_register(offset::DEV_STS) & FATAL_ERROR, 0);
    allocate(&mut driver, Opcode::AllocPd);
}

#[test]
fn queue_outside_memory_is_fatal_until_a_reset() {
    let nowhere = 1 << 40;
    for (submission, completion) in [(nowhere, RAM + 0x2000), (RAM + 0x1000, nowhere)] {
        let mut driver = Driver::new();
        driver.set_queues(DEPTH, submission, completion);
        let entry = driver.entry(0, Opcode::AllocPd as u8, &[]);
        driver.submit(&entry);
        driver.wait_for_register(offset::DEV_STS, |status| status & FATAL_ERROR != 0);
        driver.bring_up();
        allocate(&mut driver, Opcode::AllocPd);
    }
}

#[test]
fn queue_of_impossible_depth_is_fatal_until_a_reset() {
    let mut driver = Driver::new();
    for depth in [0, 3, 0x8000] {
        driver.set_queues(depth, RAM + 0x1000, RAM + 0x2000);
        driver.write_register(offset::AQ_PROD_DB, 1);
        driver.wait_for_register(offset::DEV_STS, |status| status & FATAL_ERROR != 0);
        driver.bring_up();
    }
    allocate(&mut driver, Opcode::AllocPd);
}

#[test]
fn accesses_of_other_lengths_change_nothing() {
    let mut driver = Driver::new();
    for length in [1, 2, 3, 8] {
        driver
            .link
            .write(REGISTERS, offset::DEV_CTL, &vec![1; length]);
        driver.link.write(MEMORY, 0, &vec![1; length]);
    }
    driver.link.write(REGISTERS, offset::DEV_CTL + 1, &[1; 4]);
    driver.link.write(MEMORY, 2, &[1; 4]);
    assert_eq!(driver.read_register(offset::DEV_STS) & 8, 0, "no reset");
    allocate(&mut driver, Opcode::AllocPd);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever command arrives, it is completed with its number, and the adapter can be brought up
    /// again.
    #[test]
    fn any_commands_are_completed(
        commands in prop::collection::vec((1u8..30, 0u8..8, prop::collection::vec(any::<u8>(), 60)), 1..100),
    ) {
        let mut driver = Driver::new();
        for (opcode, flags, payload) in &commands {
            let entry = driver.entry(flags & !1, *opcode, payload);
            driver.submit(&entry);
            prop_assert!(driver.completion().status <= Status::ResourceBusy as u8);
        }
        driver.bring_up();
        allocate(&mut driver, Opcode::AllocPd);
    }

    #[test]
    fn any_register_accesses_leave_it_able_to_be_reset(
        accesses in prop::collection::vec((0u64..0x80, any::<u32>()), 1..100),
    ) {
        let mut driver = Driver::new();
        for (offset, value) in accesses {
            driver.link.write(REGISTERS, offset, &value.to_le_bytes());
            driver.link.read(REGISTERS, offset, &mut [0; 4]);
        }
        driver.bring_up();
        allocate(&mut driver, Opcode::AllocPd);
    }
}
