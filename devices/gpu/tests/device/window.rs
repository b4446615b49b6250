//! The aperture as a window of pages.

use peerbar_endpoint::Size;
use peerbar_gpu::{Config, Mode};

use peerbar_rig::Link;

use crate::driver::{BAR2, Command, Driver, Fault, MIB, pattern};

const PAGE: u64 = 64 << 10;

#[test]
fn a_window_is_not_mappable_and_a_static_aperture_is() {
    for (mode, mappable, features) in [(Mode::Static, true, 0), (Mode::Window, false, 1)] {
        let driver = Driver::new(mode);
        assert_eq!(driver.region_size(2), 4 * MIB);
        assert_eq!(driver.is_mappable(2), mappable);
        assert_eq!(driver.register(0x0c), features);
        assert_eq!(driver.wide_register(0x10), 32 * MIB);
        assert_eq!(driver.wide_register(0x18), 4 * MIB);
    }
}

#[test]
fn an_access_through_an_empty_entry_is_lost_and_reported() {
    let driver = Driver::new(Mode::Window);
    let mut word = [0; 8];
    driver.read_bar2(3 * PAGE + 8, &mut word);
    assert_eq!(word, [0xff; 8]);
    assert!(driver.take_vector(0));
    driver.write_bar2(0, &[1; 4]);
    assert!(driver.take_vector(0));
    let fault = |write, address| Fault {
        code: 1,
        channel: 0xff,
        write,
        address,
    };
    assert_eq!(driver.take_fault(), Some(fault(false, 3 * PAGE + 8)));
    assert_eq!(driver.take_fault(), Some(fault(true, 0)));
    driver.set_window(0, Some(0));
    driver.read_bar2(0, &mut word);
    assert_eq!(word, [0; 8], "the write is lost");
}

#[test]
fn pages_can_be_put_anywhere_in_vram_moved_and_revoked() {
    let mut driver = Driver::new(Mode::Window);
    driver.enable(0);
    driver.set_window(5, Some(30 * MIB));
    let data = pattern(PAGE as usize, 9);
    driver.write_bar2(5 * PAGE, &data);
    let crc = |offset| Command::new(4, 0b1, &[offset, PAGE]);
    let expected = u64::from(crc32c::crc32c(&data));
    assert_eq!(driver.run(0, &crc(30 * MIB)), expected);
    driver.set_window(63, Some(30 * MIB));
    driver.set_window(5, None);
    let mut seen = vec![0; PAGE as usize];
    driver.read_bar2(63 * PAGE, &mut seen);
    assert!(seen == data);
    driver.read_bar2(5 * PAGE, &mut seen);
    assert!(seen.iter().all(|byte| *byte == 0xff));
}

#[test]
fn an_access_over_two_pages_meets_both() {
    let driver = Driver::new(Mode::Window);
    driver.set_window(0, Some(8 * MIB));
    driver.set_window(1, Some(MIB));
    driver.write_bar2(PAGE - 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    driver.set_window(1, None);
    let mut seen = [0; 8];
    driver.read_bar2(PAGE - 4, &mut seen);
    assert_eq!(seen, [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(driver.take_fault().unwrap().address, PAGE);
}

#[test]
fn the_device_s_own_dma_follows_the_page_table() {
    let mut driver = Driver::new(Mode::Window);
    driver.enable(0);
    driver.set_window(0, Some(8 * MIB));
    driver.set_window(1, Some(2 * MIB));
    let fill = Command::new(2, 0, &[BAR2, 2 * PAGE, 0x0101_0101_0101_0101]);
    driver.run(0, &fill);
    for offset in [8 * MIB, 2 * MIB] {
        let crc = Command::new(4, 0b1, &[offset, PAGE]);
        let expected = crc32c::crc32c(&vec![1; PAGE as usize]);
        assert_eq!(driver.run(0, &crc), u64::from(expected));
    }
    driver.set_window(1, None);
    driver.submit(0, &fill);
    driver.wait_for_status(0, 2 | 2 << 8);
    let fault = driver.take_fault().unwrap();
    assert_eq!(
        (fault.code, fault.write, fault.address),
        (2, true, BAR2 + PAGE)
    );
}

#[test]
fn revoked_window_entry_is_not_written_through() {
    let mut driver = Driver::new(Mode::Window);
    for round in 1..100u8 {
        driver.enable(0);
        driver.set_window(0, Some(0));
        let pattern = u64::from_le_bytes([round; 8]);
        let mut last = (0, 0);
        for _ in 0..32 {
            last = driver.submit(0, &Command::new(2, 0, &[BAR2, PAGE, pattern]));
        }
        driver.set_window(0, None);
        driver.set_window(1, Some(0));
        driver.write_bar2(PAGE, &[0; 8]);
        // Either all commands were done before, or one of them has failed by now or will.
        let start = std::time::Instant::now();
        while driver.channel_status(0) == 1 && !driver.is_fenced(last) {
            assert!(start.elapsed().as_secs() < 20);
        }
        let mut seen = [1; 8];
        driver.read_bar2(PAGE, &mut seen);
        assert_eq!(seen, [0; 8], "round {round}");
        driver.disable(0);
        driver.wait_for_status(0, 0);
    }
}

#[test]
fn the_largest_window_has_262144_pages() {
    let driver = Driver::with(&Config {
        vram: Size(16 << 30),
        aperture: Some(Size(16 << 30)),
        ..Driver::config(Mode::Window)
    });
    driver.set_window(262_143, Some((16 << 30) - PAGE));
    driver.write_bar2((16 << 30) - 4, &[1, 2, 3, 4]);
    let mut seen = [0; 4];
    driver.read_bar2((16 << 30) - 4, &mut seen);
    assert_eq!((seen, driver.register(0x28)), ([1, 2, 3, 4], 0));
    driver.set_window(262_144, Some(0));
    assert_eq!(driver.take_fault().unwrap().address, 16 << 30);
}
