//! Sanitize (NVMe Base 2.0, 5.24), and its effect on namespaces and the Persistent Memory Region.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use peerbar_nvme::{Config, Source};
use peerbar_nvme_spec::registers::offset::{PMRCTL, PMRSTS};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tempfile::NamedTempFile;

use crate::driver::{DATA, Driver, LIST, enabled, enabled_with};
use crate::failures::{create_failing_pair, fail};
use crate::machine::{MIB, config, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{Command, READ, WRITE, async_event_request, blocks, get_log, sc};

/// SANACT.
const EXIT_FAILURE_MODE: u32 = 1;
const BLOCK_ERASE: u32 = 2;
const OVERWRITE: u32 = 3;
/// AUSE and NDAS.
const UNRESTRICTED: u32 = 1 << 3;
const NO_DEALLOCATE: u32 = 1 << 9;
/// SSTAT.
const COMPLETED: u8 = 1;
const FAILED: u8 = 3;

fn sanitize(cdw10: u32) -> Command {
    Command::new(0x84, 0, &[cdw10])
}

/// SPROG, SSTAT and SCDW10.
fn status(driver: &mut Driver) -> (u16, u8, u32) {
    let page = driver.fetch(get_log(0x81, 0, 512), 512);
    let sprog = u16::from_le_bytes([page[0], page[1]]);
    let scdw10 = u32::from_le_bytes(page[4..8].try_into().unwrap());
    (sprog, page[2] & 7, scdw10)
}

#[test]
fn block_erase_makes_namespaces_and_region_zeros() {
    let kept = NamedTempFile::new().unwrap();
    kept.as_file().set_len(2 * MIB).unwrap();
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(MIB).unwrap();
    for options in [0, NO_DEALLOCATE] {
        let mut driver = enabled_with(&Config {
            pmr: Some(kept.path().into()),
            namespaces: vec![Source::Ram(MIB), Source::File(image.path().into())],
            ..config()
        });
        assert_eq!(status(&mut driver), (0xffff, 0, 0));
        driver.store(0, &pattern(4096, 1));
        let mut second = blocks(WRITE, 8, 8).at(DATA, 0);
        second.nsid = 2;
        driver.ok(1, second);
        kept.as_file().write_all_at(&[7; 4096], 0x1_0000).unwrap();
        let request = driver.submit(0, async_event_request());
        driver.ok(0, sanitize(BLOCK_ERASE | options));
        let event = driver.take(0);
        assert_eq!((event.cid, event.dw0), (request, 0x0081_0106));
        assert_eq!(
            status(&mut driver),
            (0xffff, COMPLETED, BLOCK_ERASE | options)
        );
        assert_eq!(driver.load(0, 4096), [0; 4096]);
        let erased = |file: &NamedTempFile| {
            let bytes = std::fs::read(file.path()).unwrap();
            bytes.iter().all(|byte| *byte == 0)
        };
        assert!(erased(&kept) && erased(&image), "{options:#x}");
        driver.store(0, &pattern(512, 2));
        assert_eq!(driver.load(0, 512), pattern(512, 2), "it goes on");
    }
}

#[test]
fn sanitize_is_refused_while_the_region_is_enabled() {
    let kept = NamedTempFile::new().unwrap();
    kept.as_file().set_len(2 * MIB).unwrap();
    let mut driver = enabled_with(&Config {
        pmr: Some(kept.path().into()),
        ..config()
    });
    kept.as_file().write_all_at(&[7; 512], 0).unwrap();
    driver.store(0, &[7; 512]);
    driver.set_register(PMRCTL, 1);
    assert_eq!(driver.code(0, sanitize(BLOCK_ERASE)), 0x23);
    assert_eq!(driver.load(0, 512), [7; 512]);
    assert_eq!(driver.register(PMRSTS), 0);
    driver.set_register(PMRCTL, 0);
    driver.ok(0, sanitize(BLOCK_ERASE));
    driver.set_register(PMRCTL, 1);
    assert_eq!(driver.register(PMRSTS), 0);
    assert_eq!(driver.read_region(4, 0, 512), [0; 512]);
}

#[test]
fn other_ways_to_sanitize_are_refused() {
    let mut driver = enabled();
    for action in [0, OVERWRITE, 4, 5, 7] {
        assert_eq!(driver.code(0, sanitize(action)), sc::INVALID_FIELD);
    }
    driver.ok(0, sanitize(EXIT_FAILURE_MODE));
    assert_eq!(status(&mut driver), (0xffff, 0, 0));
    let identify = driver.fetch(peerbar_rig::nvme::command::identify(1, 0), 4096);
    assert_eq!(identify[328..332], [2, 0, 0, 0x40], "SANICAP");
}

/// A controller with an image that can no longer be erased.
fn sealed() -> (Driver, File) {
    let image = memfd_create("image", MemfdFlags::ALLOW_SEALING).unwrap();
    let image = File::from(image);
    image.set_len(MIB).unwrap();
    let path = format!("/proc/self/fd/{}", image.as_raw_fd());
    let driver = enabled_with(&Config {
        namespaces: vec![Source::File(path.into())],
        ..config()
    });
    fcntl_add_seals(&image, SealFlags::WRITE).unwrap();
    (driver, image)
}

#[test]
fn failed_sanitize_makes_media_unusable_until_it_is_left() {
    for (options, exit) in [(UNRESTRICTED, 0), (0, sc::SANITIZE_FAILED)] {
        let (mut driver, _image) = sealed();
        driver.ok(0, sanitize(BLOCK_ERASE | options));
        let read = blocks(READ, 0, 1).at(DATA, 0);
        assert_eq!(status(&mut driver).1, FAILED);
        assert_eq!(driver.code(1, read), sc::SANITIZE_FAILED);
        driver.disable();
        driver.bring_up();
        assert_eq!(driver.code(1, read), sc::SANITIZE_FAILED, "after a reset");
        assert_eq!(driver.code(0, sanitize(EXIT_FAILURE_MODE)), exit);
        let code = driver.code(1, read);
        assert_eq!(code, exit, "{options}");
    }
}

#[test]
fn commands_in_progress_end_before_the_media_is_erased() {
    let mut driver = enabled();
    driver.write(DATA, &[7; 4096]);
    for round in 0..20 {
        for block in 0..8 {
            driver.put(1, blocks(WRITE, block * 8, 8).at(DATA, 0));
        }
        driver.ring(1);
        driver.ok(0, sanitize(BLOCK_ERASE));
        for _ in 0..8 {
            let code = driver.take(1).code();
            assert!([0, sc::SANITIZE_IN_PROGRESS].contains(&code), "{code:#x}");
        }
        for block in 0..8 {
            assert_eq!(driver.load(block * 8, 4096), [0; 4096], "round {round}");
        }
        driver.write(DATA, &[7; 4096]);
    }
}

#[test]
fn sanitize_of_a_failing_controller_has_not_begun() {
    // A reset that follows at once may also keep a sanitize from beginning.
    for round in 0..10 {
        let mut driver = enabled();
        let data = pattern(512, 3);
        driver.store(0, &data);
        create_failing_pair(&mut driver);
        driver.inject("delay command write lba=0..8 by=60s");
        driver.submit(1, blocks(WRITE, 0, 1).at(DATA, 0));
        // A later command of its queue is complete, so it has begun.
        driver.ok(1, blocks(READ, 64, 1).at(LIST, 0));
        driver.submit(0, sanitize(BLOCK_ERASE));
        let other = blocks(READ, 64, 1).at(DATA, 0);
        while driver.code(1, other) != sc::SANITIZE_IN_PROGRESS {}
        fail(&mut driver);
        driver.disable();
        driver.clear_faults();
        driver.bring_up();
        assert_ne!(status(&mut driver).1, COMPLETED, "round {round}");
        assert_eq!(driver.load(0, 512), data, "round {round}");
    }
}

#[test]
fn sanitize_fails_if_the_region_does_not_reach_the_disk() {
    let kept = NamedTempFile::new().unwrap();
    kept.as_file().set_len(2 * MIB).unwrap();
    let mut driver = enabled_with(&Config {
        pmr: Some(kept.path().into()),
        ..config()
    });
    kept.as_file().set_len(4096).unwrap();
    driver.ok(0, sanitize(BLOCK_ERASE));
    assert_eq!(status(&mut driver).1, FAILED);
}
