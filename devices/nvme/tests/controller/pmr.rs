//! The Persistent Memory Region (NVMe Base 2.0, 8.14) and its registers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use peerbar_nvme::Config;
use peerbar_nvme_spec::pmr::Pmrsts;
use peerbar_nvme_spec::registers::offset::{
    PMRCAP, PMRCTL, PMREBS, PMRMSCL, PMRMSCU, PMRSTS, PMRSWTP,
};
use peerbar_vfio_user::{Device, RegionMapping};
use tempfile::TempDir;

use crate::driver::{DATA, Driver, disabled, enabled_with};
use crate::machine::{CMB, MIB, Machine, PAGE, config, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{
    COMPARE, Command, FLUSH, READ, WRITE, async_event_request, blocks,
};
use peerbar_rig::nvme::command::{get_log, sc, set_feature};

const NOT_READY: u32 = Pmrsts::new().with_nrdy(true).into_bits();
const UNRELIABLE: u32 = Pmrsts::new().with_hsts(Pmrsts::UNRELIABLE).into_bits();
const BASE_INVALID: u32 = Pmrsts::new().with_cbai(true).into_bits();

const BYTES: u64 = 4 * MIB;
/// The address at which commands find the region, and that of its BAR.
const PMR: u64 = 0x70_0000_0000;
const BAR4: u64 = 0x50_0000_0000;

/// The file of a region.
struct Kept(TempDir);

impl Kept {
    fn new() -> Self {
        let kept = Self(TempDir::new().unwrap());
        File::create(kept.path()).unwrap().set_len(BYTES).unwrap();
        kept
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pmr")
    }

    fn config(&self) -> Config {
        Config {
            pmr: Some(self.path()),
            ..config()
        }
    }

    /// Returns an enabled controller whose region is ready, also for commands.
    fn driver(&self) -> Driver {
        let driver = enabled_with(&self.config());
        driver.assign_bar(4, BAR4);
        enable(&driver, PMR);
        driver
    }
}

fn enable(machine: &Machine, base: u64) {
    machine.set_register(PMRCTL, 1);
    machine.set_register(PMRMSCU, (base >> 32) as u32);
    machine.set_register(PMRMSCL, base as u32 | 2);
}

/// Returns the region as the guest maps it.
fn mapped(machine: &Machine) -> File {
    let device = machine.endpoint();
    let region = device.region(4).unwrap();
    assert_eq!(region.size, BYTES);
    let RegionMapping::Whole(fd) = region.mapping else {
        panic!("{region:?}");
    };
    fd.try_clone_to_owned().unwrap().into()
}

fn contents(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    file.read_exact_at(&mut data, offset).unwrap();
    data
}

#[test]
fn registers_say_that_there_is_a_region_and_when_it_is_ready() {
    let kept = Kept::new();
    let driver = disabled(&kept.config());
    assert_eq!(driver.wide_register(0) >> 56 & 3, 3, "CAP.PMRS, CAP.CMBS");
    assert_eq!(
        driver.register(PMRCAP),
        1 << 24 | 1 << 16 | 2 << 10 | 4 << 5 | 3 << 3
    );
    assert_eq!([PMREBS, PMRSWTP].map(|at| driver.register(at)), [0; 2]);
    assert_eq!(driver.register(PMRSTS), NOT_READY);
    enable(&driver, PMR | 0xffc);
    assert_eq!([PMRCTL, PMRSTS].map(|at| driver.register(at)), [1, 0]);
    assert_eq!([PMRMSCL, PMRMSCU].map(|at| driver.register(at)), [2, 0x70]);
    driver.set_wide_register(crate::machine::CMBMSC, (PMR + BYTES - PAGE) | 3);
    assert_eq!(driver.register(PMRSTS), BASE_INVALID, "it meets the CMB");
    driver.set_register(PMRCTL, 0);
    assert_eq!(driver.register(PMRSTS), NOT_READY | BASE_INVALID);
    let without = disabled(&config());
    enable(&without, PMR);
    assert_eq!(without.wide_register(0) >> 56 & 1, 0);
    let registers = (PMRCAP..=PMRMSCU).step_by(4);
    assert!(registers.into_iter().all(|at| without.register(at) == 0));
}

#[test]
fn commands_find_it_at_its_base_address_while_it_is_enabled() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    let region = mapped(&driver);
    let data = pattern(8192, 3);
    driver.store(0, &data);
    // From the disk to the region, and back, with the second page in the CMB.
    driver.ok(1, blocks(READ, 0, 16).at(PMR + 0x3000, CMB + 0x1000));
    assert_eq!(contents(&region, 0x3000, 4096), data[..4096]);
    driver.ok(1, blocks(WRITE, 64, 8).at(PMR + 0x3000, 0));
    assert_eq!(driver.load(64, 4096), data[..4096]);
    // By the BAR's address, too.
    driver.ok(1, blocks(READ, 8, 8).at(BAR4 + 0x5000, 0));
    assert_eq!(contents(&region, 0x5000, 4096), data[4096..]);
    driver.set_register(PMRCTL, 0);
    assert_eq!(
        driver.code(1, blocks(READ, 8, 8).at(PMR + 0x3000, 0)),
        sc::DATA_XFER_ERROR
    );
    assert_eq!(contents(&region, 0x3000, 4096), data[..4096]);
    driver.set_register(PMRCTL, 1);
    driver.ok(1, blocks(COMPARE, 64, 8).at(PMR + 0x3000, 0));
}

#[test]
fn registers_survive_controller_reset_contents_every_reset() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    let region = mapped(&driver);
    region.write_all_at(&[7; 512], 0x1000).unwrap();
    driver.disable();
    driver.bring_up();
    driver.ok(1, blocks(WRITE, 3, 1).at(PMR + 0x1000, 0));
    assert_eq!(driver.load(3, 512), [7; 512]);
    driver.reset_function();
    assert_eq!(driver.register(PMRSTS), NOT_READY);
    assert_eq!(
        [PMRCTL, PMRMSCL, PMRMSCU].map(|at| driver.register(at)),
        [0; 3]
    );
    assert_eq!(contents(&region, 0x1000, 512), [7; 512]);
    drop((driver, region));
    let driver = kept.driver();
    assert_eq!(driver.read_region(4, 0x1000, 512), [7; 512]);
}

#[test]
fn shortened_file_shows_in_pmrsts_smart_and_an_event() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    driver.ok(0, set_feature(0x0b, 1 << 5));
    let request = driver.submit(0, async_event_request());
    assert_eq!(driver.register(PMRSTS), 0);
    File::options()
        .write(true)
        .open(kept.path())
        .unwrap()
        .set_len(PAGE)
        .unwrap();
    assert_eq!(driver.register(PMRSTS), 2 | UNRELIABLE);
    let event = driver.take(0);
    assert_eq!((event.cid, event.dw0), (request, 0x0002_0001));
    let smart = driver.fetch(get_log(0x02, 0, 512), 512);
    assert_eq!(smart[0], 1 << 5, "NVME_SMART_CRIT_PMR");
    driver.store(0, &[1; 512]);
    assert_eq!(
        driver.code(1, blocks(READ, 0, 1).at(PMR + 2 * PAGE, 0)),
        sc::DATA_XFER_ERROR
    );
    assert_eq!(driver.load(0, 512), [1; 512], "the namespaces go on");
}

/// Returns the first byte of each line of the first megabyte, after a power loss.
fn lines_after_power_loss(pattern: u64) -> Vec<u8> {
    let kept = Kept::new();
    let mut driver = kept.driver();
    driver.inject(&format!("lose-power command flush pattern={pattern}"));
    let region = mapped(&driver);
    region.write_all_at(&[1; 0x8000], 0).unwrap();
    driver.register(PMRSTS);
    // One write by the guest, and one by a command.
    region.write_all_at(&[2; 0x4000], 0x4000).unwrap();
    driver.store(0, &[3; 0x1000]);
    driver.ok(1, blocks(READ, 0, 8).at(PMR + 0x8000, 0));
    driver.submit(1, Command::new(FLUSH, 1, &[]));
    driver.wait_for_status(!0, !0);
    // The power is lost in the reset that follows the end of the link; the controller's end waits
    // for it.
    drop((driver, region));
    let bytes = std::fs::read(kept.path()).unwrap();
    let lines = bytes[..0x9000].chunks(64).map(|line| {
        assert_eq!(line, [line[0]; 64], "no line is torn");
        line[0]
    });
    lines.collect()
}

#[test]
fn power_loss_keeps_what_a_barrier_followed_and_tears_the_rest() {
    let mut seen = [0; 4];
    for pattern in 1..4 {
        let lines = lines_after_power_loss(pattern);
        assert_eq!(lines[..0x100], [1; 0x100], "before the barrier");
        assert!(lines[0x100..0x200].iter().all(|byte| [1, 2].contains(byte)));
        assert!(lines[0x200..].iter().all(|byte| [0, 3].contains(byte)));
        let unsynced = lines[0x100..].iter();
        unsynced.for_each(|byte| seen[usize::from(*byte)] += 1);
        assert_eq!(lines, lines_after_power_loss(pattern), "by the pattern");
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn queues_are_not_taken_in_it() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    let completion = peerbar_rig::nvme::command::create_cq(2, 16, 2, PMR);
    assert_eq!(driver.code(0, completion), sc::INVALID_FIELD);
    driver.ok(0, peerbar_rig::nvme::command::create_cq(2, 16, 2, DATA));
    let submission = peerbar_rig::nvme::command::create_sq(2, 16, 2, PMR + BYTES - PAGE);
    assert_eq!(driver.code(0, submission), sc::INVALID_FIELD);
}

#[test]
fn hostile_guest_moves_disables_and_resets_amid_commands() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    for round in 0..60_u64 {
        let base = PMR + (round % 3) * BYTES;
        for command in 0..8 {
            let at = base + command * PAGE;
            driver.put(1, blocks(READ, command * 8, 8).at(at, 0));
        }
        driver.ring(1);
        match round % 5 {
            0 => driver.set_register(PMRCTL, 0),
            1 => driver.set_register(PMRMSCL, 0),
            2 => driver.assign_bar(4, BAR4 + (round << 32)),
            3 => driver.set_register(PMRMSCU, (base >> 32) as u32 + 1),
            _ => {
                driver.reset_function();
                driver.assign_bar(2, crate::machine::BAR2);
                driver.assign_bar(4, BAR4);
                driver.set_command(0b110);
                driver.open_cmb();
                driver.bring_up();
            }
        }
        enable(&driver, base);
        if round % 5 != 4 {
            for _ in 0..8 {
                let code = driver.take(1).code();
                assert!([0, sc::DATA_XFER_ERROR].contains(&code), "{code:#x}");
            }
        }
        assert_eq!(driver.register(PMRSTS), 0);
        driver.ok(1, blocks(READ, 0, 8).at(base, 0));
    }
}

#[test]
fn queues_are_not_taken_at_its_bus_address() {
    let kept = Kept::new();
    let mut driver = kept.driver();
    let completion = peerbar_rig::nvme::command::create_cq(2, 16, 2, BAR4);
    assert_eq!(driver.code(0, completion), sc::INVALID_FIELD);
}

#[test]
fn admin_queues_are_not_taken_in_it() {
    let kept = Kept::new();
    let driver = disabled(&kept.config());
    driver.assign_bar(4, BAR4);
    enable(&driver, PMR);
    driver.set_register(0x24, 0x000f_000f);
    driver.set_wide_register(0x28, PMR);
    driver.set_wide_register(0x30, PMR + PAGE);
    driver.set_register(0x14, 4 << 20 | 6 << 16 | 1);
    driver.wait_for_status(2, 2);
}
