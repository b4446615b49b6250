//! Accesses that no driver makes: the controller answers them, and works again after a reset.

use peerbar_vfio_user::CONFIG_REGION;
use proptest::prelude::*;

use crate::driver::{DATA, Driver, enabled};
use crate::machine::{CC, CSTS};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{READ, blocks};

const REGISTERS: u32 = 0;
const REGISTER_BYTES: u64 = 0x4000;
const CONFIG_BYTES: u64 = 0x1000;

/// An access with these bytes, at an offset where they fit.
fn access(region: u32, region_bytes: u64) -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    (0..region_bytes, prop::collection::vec(any::<u8>(), 1..9)).prop_map(move |(offset, data)| {
        let last = region_bytes - data.len() as u64;
        (region, offset.min(last), data)
    })
}

/// Registers and doorbells that exist are hit more often than not.
fn likely() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let registers = (0u64..0x1c).prop_map(|index| index * 4);
    let doorbells = (0u64..8).prop_map(|index| 0x1000 + index * 4);
    (prop_oneof![registers, doorbells], any::<[u8; 4]>())
        .prop_map(|(offset, data)| (REGISTERS, offset, data.to_vec()))
}

/// Checks that the controller works like a new one after a reset.
#[track_caller]
fn works_after_a_reset(driver: &mut Driver) {
    driver.reset_by_client();
    driver.set_up_function();
    driver.open_cmb();
    driver.bring_up();
    driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_accesses_leave_a_controller_that_a_reset_cures(
        accesses in prop::collection::vec(
            prop_oneof![likely(), access(REGISTERS, REGISTER_BYTES), access(CONFIG_REGION, CONFIG_BYTES)],
            1..40,
        ),
    ) {
        let mut driver = enabled();
        for (region, offset, data) in accesses {
            driver.write_region(region, offset, &data);
            driver.read_region(region, offset, data.len());
        }
        works_after_a_reset(&mut driver);
    }
}

#[test]
fn every_register_can_be_read_in_every_size() {
    let driver = enabled();
    let whole = driver.read_region(REGISTERS, 0, REGISTER_BYTES as usize);
    for size in [1, 2, 4, 8] {
        for offset in (0..REGISTER_BYTES as usize - size).step_by(size) {
            let part = driver.read_region(REGISTERS, offset as u64, size);
            assert_eq!(part, whole[offset..offset + size], "{offset:#x}+{size}");
        }
    }
    assert_eq!(whole[0x1c], 1, "CSTS: ready, in a read of any length");
    assert!(
        whole[0x1000..].iter().all(|byte| *byte == 0),
        "doorbells read as 0"
    );
}

#[test]
fn what_is_read_only_or_reserved_stays_as_it_is() {
    let driver = enabled();
    let before = driver.read_region(REGISTERS, 0, 0x1000);
    let read_only = (0x00..0x0c)
        .chain(0x18..0x24)
        .chain(0x38..0x50)
        .chain(0x58..0x1000);
    for offset in read_only.step_by(4) {
        driver.write_region(REGISTERS, offset, &[0xff; 4]);
    }
    assert_eq!(driver.read_region(REGISTERS, 0, 0x1000), before);
}

#[test]
fn a_part_of_a_register_is_not_written() {
    let driver = enabled();
    let enabled = driver.register(CC);
    for (offset, len) in [
        (CC, 1),
        (CC, 2),
        (CC + 1, 1),
        (CC + 2, 2),
        (CC + 1, 4),
        (CC, 3),
    ] {
        driver.write_region(REGISTERS, offset, &vec![0; len]);
        assert_eq!((driver.register(CC), driver.register(CSTS)), (enabled, 1));
    }
}

#[test]
fn a_doorbell_at_every_offset_changes_no_other_queue() {
    let mut driver = enabled();
    let own = 0x1000..0x1010;
    for offset in (0x1000..REGISTER_BYTES).step_by(4) {
        if !own.contains(&offset) {
            driver.write_region(REGISTERS, offset, &[3, 0, 0, 0]);
        }
    }
    for (offset, len) in [
        (0x1008, 1),
        (0x1008, 2),
        (0x1008, 8),
        (0x100a, 2),
        (0x1009, 4),
    ] {
        driver.write_region(REGISTERS, offset, &vec![1; len]);
    }
    driver.ok(1, blocks(READ, 0, 1).at(DATA, 0));
    driver.ok(1, blocks(READ, 1, 1).at(DATA, 0));
    assert_eq!(driver.poll(1), None);
}
