//! Shutdown, normal and abrupt (NVMe Base 2.0, 3.6).

use peerbar_nvme::{Config, Source};

use crate::driver::{DATA, ENABLED, disabled, enabled, enabled_with};
use crate::machine::{CC, CSTS, MIB, config, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{FLUSH, WRITE, blocks};

const NORMAL: u32 = 1 << 14;
const ABRUPT: u32 = 2 << 14;
const SHST: u32 = 3 << 2;
const COMPLETE: u32 = 2 << 2;

#[test]
fn shutdown_completes_once_all_is_written_and_ends_by_a_reset() {
    for kind in [NORMAL, ABRUPT] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(MIB).unwrap();
        let mut driver = enabled_with(&Config {
            namespaces: vec![Source::File(image.path().into())],
            ..config()
        });
        let data = pattern(512, 51);
        driver.store(3, &data);
        driver.set_register(CC, ENABLED | kind);
        driver.wait_for_status(SHST, COMPLETE);
        assert_eq!(driver.register(CSTS) & 0b11, 1, "ready, not failed");
        assert_eq!(std::fs::read(image.path()).unwrap()[3 * 512..4 * 512], data);
        driver.disable();
        assert_eq!(driver.register(CSTS), 0);
        driver.bring_up();
        assert_eq!(driver.load(3, 512), data);
    }
}

#[test]
fn commands_that_were_rung_before_a_shutdown_are_done() {
    let mut driver = enabled();
    driver.write(DATA, &pattern(512, 52));
    for block in 0..10 {
        driver.put(1, blocks(WRITE, block, 1).at(DATA, 0));
    }
    driver.ring(1);
    driver.set_register(CC, ENABLED | NORMAL);
    driver.wait_for_status(SHST, COMPLETE);
    for _ in 0..10 {
        assert_eq!(driver.poll(1).map(|entry| entry.code()), Some(0));
    }
}

#[test]
fn a_controller_that_is_not_enabled_shuts_down_too() {
    let mut driver = disabled(&config());
    driver.set_register(CC, NORMAL);
    driver.wait_for_status(SHST, COMPLETE);
    driver.bring_up();
    assert_eq!(driver.register(CSTS), 1, "ready, and not shut down");
    driver.ok(1, peerbar_rig::nvme::command::Command::new(FLUSH, 1, &[]));
}

#[test]
fn a_shutdown_that_comes_with_a_reset_completes() {
    let mut driver = enabled();
    driver.set_register(CC, ENABLED & !1 | NORMAL);
    driver.wait_for_status(SHST | 1, COMPLETE);
    driver.bring_up();
    assert_eq!(driver.register(CSTS), 1);
}
