//! The counters that a driver sees.

use peerbar_dma_log::{Completer, Direction, Entry, Purpose, Route};
use peerbar_gpu::Mode;
use peerbar_vfio_user::Device;

use peerbar_rig::Link;

use crate::driver::{BAR2, Command, Driver, RAM};

fn bytes(log: &[Entry], purpose: Purpose, route: Route, direction: Direction) -> (u64, u64) {
    let of = log
        .iter()
        .find(|entry| (entry.purpose, entry.route, entry.direction) == (purpose, route, direction));
    of.map_or((0, 0), |entry| (entry.requests, entry.bytes))
}

#[test]
fn the_log_is_empty_until_asked_for_and_then_stands_still() {
    let mut driver = Driver::new(Mode::Static);
    let mut page = [0xee; 64];
    driver.endpoint().region_read(0, 0xc000, &mut page).unwrap();
    assert_eq!(page, [0; 64]);
    driver.enable(0);
    driver.run(0, &Command::default());
    let first = driver.dma_log();
    driver.run(0, &Command::default());
    let mut page = vec![0; 0x2000];
    driver.endpoint().region_read(0, 0xc000, &mut page).unwrap();
    assert_eq!(peerbar_dma_log::parse(&page).unwrap(), first);
    assert_ne!(driver.dma_log(), first);
}

#[test]
fn every_byte_of_dma_is_counted_by_purpose_and_route() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.run(0, &Command::new(1, 0b10, &[RAM, 0, 5000]));
    driver.run(0, &Command::new(1, 0, &[BAR2, RAM, 700]));
    driver.run(0, &Command::new(1, 0b11, &[0, 0x10000, 900]));
    driver.submit(0, &Command::new(1, 0b10, &[0x5000, 0, 8]));
    driver.wait_for_vector(0);
    let log = driver.dma_log();
    use Direction::{Read, Write};
    let of = |purpose, route, direction| bytes(&log, purpose, route, direction);
    assert_eq!(of(Purpose::Command, Route::GuestRam, Read), (4, 4 * 128));
    assert_eq!(of(Purpose::Completion, Route::GuestRam, Write), (6, 48));
    assert_eq!(of(Purpose::Payload, Route::GuestRam, Read), (1, 5000));
    assert_eq!(of(Purpose::Payload, Route::GuestRam, Write), (1, 700));
    assert_eq!(of(Purpose::Payload, Route::OwnBar, Read), (1, 700));
    let failed = log.iter().find(|entry| entry.failures > 0).unwrap();
    assert_eq!(
        (failed.route, failed.completer, failed.failures),
        (Route::Upstream, Completer::None, 1)
    );
}

#[test]
fn each_thread_s_addition_is_a_read_and_a_write() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.run(0, &Command::launch(4, 0, &[RAM, 1], (512, 1000)));
    let log = driver.dma_log();
    for direction in [Direction::Read, Direction::Write] {
        let counted = bytes(&log, Purpose::Payload, Route::GuestRam, direction);
        assert_eq!(counted, (512_000, 4_096_000));
    }
}

#[test]
fn a_reset_does_not_clear_the_counters() {
    let mut driver = Driver::new(Mode::Static);
    driver.enable(0);
    driver.run(0, &Command::default());
    let before = driver.dma_log();
    driver.set_register(0x20, 1);
    driver.wait_until_ready();
    assert_eq!(driver.dma_log(), before);
}
