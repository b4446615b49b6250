//! Every command, from rings in guest RAM and in VRAM.

use std::os::unix::fs::FileExt;

use peerbar_gpu::Mode;

use crate::driver::{BAR2, Command, Driver, MIB, RAM, pattern};

const COPY: u8 = 1;
const FILL: u8 = 2;
const COMPARE: u8 = 3;
const CRC32C: u8 = 4;

#[test]
fn data_is_copied_to_vram_and_back_and_checked_there() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let data = pattern(3_000_001, 0x5a);
    let len = data.len() as u64;
    driver.write_ram(RAM + 5, &data);
    let up = Command::new(COPY, 0b10, &[RAM + 5, 16 * MIB + 3, len]);
    assert_eq!(driver.run(0, &up), 0);
    let compare = Command::new(COMPARE, 0b10, &[RAM + 5, 16 * MIB + 3, len]);
    assert_eq!(driver.run(0, &compare), len);
    let crc = Command::new(CRC32C, 0b1, &[16 * MIB + 3, len]);
    assert_eq!(driver.run(0, &crc), u64::from(crc32c::crc32c(&data)));
    let down = Command::new(COPY, 0b01, &[16 * MIB + 3, RAM + 4 * MIB, len]);
    assert_eq!(driver.run(0, &down), 0);
    let mut back = vec![0; data.len()];
    driver.read_ram(RAM + 4 * MIB, &mut back);
    assert!(back == data);
}

#[test]
fn the_aperture_shows_the_start_of_vram_and_no_more() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    assert_eq!(driver.region_size(2), 4 * MIB);
    let fill = Command::new(FILL, 0b1, &[4 * MIB - 8, 16, 0x1122_3344_5566_7788]);
    driver.run(0, &fill);
    let mut seen = [0; 8];
    driver.read_bar2(4 * MIB - 8, &mut seen);
    assert_eq!(u64::from_le_bytes(seen), 0x1122_3344_5566_7788);
}

#[test]
fn a_bus_address_in_the_own_aperture_is_own_memory() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver
        .vram()
        .write_all_at(&pattern(4096, 1), 0x1000)
        .unwrap();
    let copy = Command::new(COPY, 0, &[BAR2 + 0x1000, BAR2 + 0x8000, 4096]);
    driver.run(0, &copy);
    let mut seen = vec![0; 4096];
    driver.vram().read_exact_at(&mut seen, 0x8000).unwrap();
    assert!(seen == pattern(4096, 1));
}

#[test]
fn a_ring_may_lie_in_vram_and_is_gone_around_many_times() {
    for in_vram in [false, true] {
        let mut driver = Driver::new(Mode::Static);
        if in_vram {
            driver.put_rings_into_vram();
        }
        driver.enable(3);
        for round in 0..200u64 {
            let fill = Command::new(FILL, 0b1, &[0, 8, round]);
            assert_eq!(driver.run(3, &fill), 0);
            let mut seen = [0; 8];
            driver.vram().read_exact_at(&mut seen, 0).unwrap();
            assert_eq!(u64::from_le_bytes(seen), round);
        }
        driver.wait_for_vector(4);
        driver.wait_for_head(3, 200);
        assert_eq!(driver.channel_status(3), 1);
    }
}

#[test]
fn commands_of_one_channel_are_done_in_order() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let mut last = (0, 0);
    for number in 0..60u64 {
        let add = Command::launch(4, 0b1, &[0, number], (1, 1));
        last = driver.put_entry(0, &add);
        if number == 30 {
            driver.ring_trapped(0, 31);
        }
    }
    driver.ring_trapped(0, 60);
    assert_eq!(driver.wait(last), (0..59).sum::<u64>());
}

#[test]
fn an_empty_command_and_one_without_a_fence_complete() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(15);
    let mut bytes = [0; 128];
    bytes[1] = 0b010;
    driver.put_bytes(15, &bytes);
    driver.ring_trapped(15, 1);
    driver.wait_for_vector(16);
    assert_eq!(driver.head(15), 1);
    for (opcode, operands) in [(COPY, [0, 0, 0]), (FILL, [0, 0, 0]), (CRC32C, [0, 0, 0])] {
        assert_eq!(driver.run(15, &Command::new(opcode, 0, &operands)), 0);
    }
}

#[test]
fn only_a_command_that_wants_an_interrupt_raises_one() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.put_bytes(0, &[0; 128]);
    driver.ring_trapped(0, 1);
    driver.wait_for_head(0, 1);
    assert!(!driver.take_vector(1));
}

#[test]
fn a_fence_may_lie_in_vram_and_its_value_comes_last() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.vram().write_all_at(&[7; 64], 0).unwrap();
    let mut bytes = [0; 128];
    bytes[0] = CRC32C;
    bytes[1] = 0b111;
    bytes[2] = 0b1;
    bytes[8..16].copy_from_slice(&0x4000u64.to_le_bytes());
    bytes[16..24].copy_from_slice(&99u64.to_le_bytes());
    bytes[32] = 64;
    driver.put_bytes(0, &bytes);
    driver.ring_trapped(0, 1);
    driver.wait_for_vector(1);
    let mut fence = [0; 16];
    driver.vram().read_exact_at(&mut fence, 0x4000).unwrap();
    assert_eq!(fence[..8], 99u64.to_le_bytes());
    assert_eq!(
        fence[8..],
        u64::from(crc32c::crc32c(&[7; 64])).to_le_bytes()
    );
}
