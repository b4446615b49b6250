//! Get Features and Set Features (NVMe Base 2.0, 5.15 and 5.27).

use crate::driver::{DATA, enabled};
use peerbar_rig::nvme::command::{Command, get_feature, sc, set_feature};

const CURRENT: u32 = 0;
const DEFAULT: u32 = 1;
const SAVED: u32 = 2;
const CAPABILITIES: u32 = 3;
const SAVE: u32 = 1 << 31;

const ARBITRATION: u8 = 0x01;
const POWER: u8 = 0x02;
const TEMPERATURE: u8 = 0x04;
const ERROR_RECOVERY: u8 = 0x05;
const WRITE_CACHE: u8 = 0x06;
const COALESCING: u8 = 0x08;
const EVENTS: u8 = 0x0b;
const TIMESTAMP: u8 = 0x0e;
const HOST_BEHAVIOR: u8 = 0x16;
const SOFTWARE_PROGRESS: u8 = 0x80;
const HOST_ID: u8 = 0x81;

#[test]
fn what_is_set_is_current_and_the_default_stays() {
    let mut driver = enabled();
    for (fid, value) in [
        (ARBITRATION, 3),
        (WRITE_CACHE, 0),
        (COALESCING, 0x0203),
        (EVENTS, 2),
    ] {
        let before = driver.ok(0, get_feature(fid, CURRENT, 0));
        assert_ne!(before, value);
        driver.ok(0, set_feature(fid, value));
        assert_eq!(
            driver.ok(0, get_feature(fid, CURRENT, 0)),
            value,
            "{fid:#x}"
        );
        assert_eq!(driver.ok(0, get_feature(fid, DEFAULT, 0)), before);
        assert_eq!(driver.ok(0, get_feature(fid, SAVED, 0)), before);
        let capabilities = driver.ok(0, get_feature(fid, CAPABILITIES, 0));
        assert_eq!(capabilities, 0b100, "changeable, not saveable");
    }
}

#[test]
fn a_controller_reset_brings_the_defaults_back() {
    let mut driver = enabled();
    driver.ok(0, set_feature(WRITE_CACHE, 0));
    driver.disable();
    driver.enable();
    assert_eq!(driver.ok(0, get_feature(WRITE_CACHE, CURRENT, 0)), 1);
}

#[test]
fn a_controller_reset_keeps_the_count_of_boots() {
    let mut driver = enabled();
    driver.ok(0, set_feature(SOFTWARE_PROGRESS, 5));
    driver.disable();
    driver.enable();
    assert_eq!(driver.ok(0, get_feature(SOFTWARE_PROGRESS, CURRENT, 0)), 5);
}

#[test]
fn nothing_is_saved() {
    let mut driver = enabled();
    let mut save = set_feature(ARBITRATION, 3);
    save.dwords[0] |= SAVE;
    assert_eq!(driver.code(0, save), sc::FEATURE_NOT_SAVEABLE);
}

#[test]
fn what_is_not_there_is_an_invalid_field() {
    let mut driver = enabled();
    for fid in [0x00, 0x03, 0x0d, 0x7f, 0xff] {
        assert_eq!(
            driver.code(0, get_feature(fid, CURRENT, 0)),
            sc::INVALID_FIELD
        );
        assert_eq!(driver.code(0, set_feature(fid, 0)), sc::INVALID_FIELD);
    }
    let power_state_1 = set_feature(POWER, 1);
    assert_eq!(driver.code(0, power_state_1), sc::INVALID_FIELD);
    assert_eq!(
        driver.code(0, get_feature(ARBITRATION, 5, 0)),
        sc::INVALID_FIELD
    );
}

#[test]
fn a_feature_of_the_controller_is_not_set_for_one_namespace() {
    let mut driver = enabled();
    let of = |fid: u8, nsid: u32| Command {
        nsid,
        ..set_feature(fid, 1)
    };
    assert_eq!(driver.code(0, of(WRITE_CACHE, 1)), sc::FEATURE_NOT_PER_NS);
    assert_eq!(driver.code(0, of(WRITE_CACHE, 9)), sc::INVALID_NS);
    driver.ok(0, of(WRITE_CACHE, u32::MAX));
    driver.ok(0, of(ERROR_RECOVERY, 2));
    let current = |nsid: u32| Command {
        nsid,
        ..get_feature(ERROR_RECOVERY, CURRENT, 0)
    };
    assert_eq!(driver.ok(0, current(2)), 1);
    assert_eq!(driver.ok(0, current(1)), 0, "the other namespace");
    assert_eq!(driver.code(0, of(ERROR_RECOVERY, 9)), sc::INVALID_NS);
}

#[test]
fn temperature_thresholds_are_over_and_under() {
    let mut driver = enabled();
    let under = 1 << 20;
    driver.ok(0, set_feature(TEMPERATURE, 350));
    driver.ok(0, set_feature(TEMPERATURE, under | 270));
    assert_eq!(driver.ok(0, get_feature(TEMPERATURE, CURRENT, 0)), 350);
    assert_eq!(driver.ok(0, get_feature(TEMPERATURE, CURRENT, under)), 270);
    let second_sensor = 2 << 16 | 350;
    assert_eq!(
        driver.code(0, set_feature(TEMPERATURE, second_sensor)),
        sc::INVALID_FIELD
    );
}

#[test]
fn features_with_data_take_and_return_it() {
    let mut driver = enabled();
    let behavior: Vec<u8> = [&[1, 1][..], &[0; 510]].concat();
    for (fid, dword, data) in [(HOST_ID, 1, vec![7; 16]), (HOST_BEHAVIOR, 0, behavior)] {
        driver.write(DATA, &data);
        driver.ok(0, set_feature(fid, dword).at(DATA, 0));
        assert_eq!(
            driver.fetch(get_feature(fid, CURRENT, dword), data.len()),
            data
        );
    }
}

#[test]
fn the_clock_goes_on_from_what_it_was_set_to() {
    let mut driver = enabled();
    let set = 1_700_000_000_000_u64;
    driver.write(DATA, &set.to_le_bytes());
    driver.ok(0, set_feature(TIMESTAMP, 0).at(DATA, 0));
    let data = driver.fetch(get_feature(TIMESTAMP, CURRENT, 0), 8);
    let now = u64::from_le_bytes(data.try_into().unwrap());
    let milliseconds = now & 0xffff_ffff_ffff;
    assert!(
        (set..set + 60_000).contains(&milliseconds),
        "{milliseconds}"
    );
    assert_eq!(now >> 49 & 7, 1, "set by the host");
}
