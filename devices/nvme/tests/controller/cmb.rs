//! The Controller Memory Buffer (NVMe Base 2.0, 8.5) and its registers (3.1.3.11 to 3.1.3.17).

use crate::driver::{disabled, enabled, queues};
use crate::machine::{CMB, CMB_BYTES, CMBLOC, CMBMSC, CMBSZ, config, pattern};
use peerbar_rig::Link as _;
use peerbar_rig::nvme::command::{READ, WRITE, blocks};

/// Submission and completion queues, lists, reads, writes.
const USES: u32 = 0x1f;

/// Bytes that CMBSZ announces: SZ in units of 4 KiB times 16 to the power of SZU.
fn bytes(cmbsz: u32) -> u64 {
    u64::from(cmbsz >> 12) << (12 + 4 * (cmbsz >> 8 & 0xf))
}

#[test]
fn it_is_hidden_until_the_host_enables_its_registers() {
    let driver = disabled(&config());
    assert_eq!(driver.wide_register(0) >> 57 & 1, 1, "CAP.CMBS");
    assert_eq!((driver.register(CMBLOC), driver.register(CMBSZ)), (0, 0));
    driver.set_wide_register(CMBMSC, 1);
    assert_eq!(driver.register(CMBLOC) & 7, 2, "BIR");
    assert_eq!(driver.register(CMBLOC) >> 12, 0, "OFST");
    assert_eq!(driver.register(CMBSZ) & USES, USES);
    assert_eq!(bytes(driver.register(CMBSZ)), CMB_BYTES);
    driver.set_wide_register(CMBMSC, 0);
    assert_eq!((driver.register(CMBLOC), driver.register(CMBSZ)), (0, 0));
}

#[test]
fn cmb_control_survives_controller_reset_not_function_reset() {
    let mut driver = enabled();
    driver.disable();
    assert_eq!(driver.wide_register(CMBMSC), CMB | 3);
    driver.bring_up();
    driver.ok(1, blocks(READ, 0, 1).at(CMB, 0));
    driver.reset_function();
    assert_eq!(driver.wide_register(CMBMSC), 0);
    assert_eq!((driver.register(CMBLOC), driver.register(CMBSZ)), (0, 0));
}

#[test]
fn queues_lists_and_data_are_in_it_at_once() {
    let mut driver = enabled();
    driver.create_pair(2, queues(CMB, CMB + 0x1000, 16, 16));
    let len = 16 * 4096;
    let data = pattern(len, 21);
    let (from, to) = (CMB + 0x1_0000, CMB + 0x4_0000);
    driver.write(from, &data);
    for round in 0..40 {
        let write = driver.prps(blocks(WRITE, round * 128, 128), from, len, CMB + 0x2000);
        driver.ok(2, write);
    }
    let read = driver.prps(blocks(READ, 39 * 128, 128), to, len, CMB + 0x3ff8);
    driver.write(CMB + 0x3ff8, &(CMB + 0x5000).to_le_bytes());
    let pages: Vec<u8> = (1..16)
        .flat_map(|page| (to + page * 4096).to_le_bytes())
        .collect();
    driver.write(CMB + 0x5000, &pages);
    driver.ok(2, read);
    assert_eq!(driver.read(to, len), data);
    driver.wait_for_vector(2);
}

#[test]
fn commands_find_it_at_its_base_address_and_not_at_the_bar_s() {
    let mut driver = enabled();
    let data = pattern(512, 22);
    driver.store(5, &data);
    driver.ok(1, blocks(READ, 5, 1).at(CMB + 0x800, 0));
    assert_eq!(driver.read(CMB + 0x800, 512), data);
    let moved = CMB + (1 << 30);
    driver.set_wide_register(CMBMSC, moved | 3);
    driver.ok(1, blocks(READ, 5, 1).at(moved + 0x1800, 0));
    assert_eq!(driver.read(CMB + 0x1800, 512), data);
    assert_ne!(driver.code(1, blocks(READ, 5, 1).at(CMB + 0x2800, 0)), 0);
    assert_eq!(driver.read(CMB + 0x2800, 512), [0; 512]);
}
