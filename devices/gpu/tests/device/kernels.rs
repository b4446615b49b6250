//! The compute kernels, on data that a driver has stored.

use std::os::unix::fs::FileExt;

use peerbar_gpu::Mode;

use crate::driver::{Command, Driver, RAM};

#[test]
fn vector_addition_reads_two_spaces_and_writes_a_third() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let floats = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
    driver.write_ram(RAM, &floats([1.0, 2.0, 3.0, 4.0]));
    driver
        .vram()
        .write_all_at(&floats([0.5; 4]), 0x100)
        .unwrap();
    let add = Command::launch(0, 0b010, &[RAM, 0x100, RAM + 0x100, 4], (1, 3));
    assert_eq!(driver.run(0, &add), 0);
    let mut sum = [0; 16];
    driver.read_ram(RAM + 0x100, &mut sum);
    assert_eq!(sum.to_vec(), floats([1.5, 2.5, 3.5, 0.0]), "three threads");
}

#[test]
fn a_sum_and_a_histogram_see_the_same_bytes() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let bytes: Vec<u8> = (0..=255).collect();
    driver.vram().write_all_at(&bytes, 0).unwrap();
    let words = bytes.chunks_exact(4).filter_map(<[u8]>::first_chunk);
    let expected: u64 = words.map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    let sum = Command::launch(2, 0b1, &[0, 64], (1, 64));
    assert_eq!(driver.run(0, &sum), expected);
    let histogram = Command::launch(3, 0b1, &[0, 256, RAM], (1, 256));
    assert_eq!(driver.run(0, &histogram), 0);
    let mut bins = vec![0; 1024];
    driver.read_ram(RAM, &mut bins);
    assert_eq!(bins, [1, 0, 0, 0].repeat(256));
}

#[test]
fn saxpy_takes_its_factor_from_the_low_half_of_an_operand() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.write_ram(RAM, &3.0f32.to_le_bytes());
    driver.write_ram(RAM + 4, &1.0f32.to_le_bytes());
    let factor = u64::from(2.0f32.to_bits()) | 0xdead << 32;
    let saxpy = Command::launch(1, 0, &[RAM, RAM + 4, 1, factor], (1, 1));
    driver.run(0, &saxpy);
    let mut y = [0; 4];
    driver.read_ram(RAM + 4, &mut y);
    assert_eq!(f32::from_le_bytes(y), 7.0);
}

#[test]
fn blocks_of_threads_add_to_one_host_counter() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    let add = Command::launch(4, 0, &[RAM, 1], (512, 1000));
    assert_eq!(driver.run(0, &add), 0);
    let mut counter = [0; 8];
    driver.read_ram(RAM, &mut counter);
    assert_eq!(u64::from_le_bytes(counter), 512_000);
}
