//! Data in PRPs of every shape (NVMe Base 2.0, 4.1.1).

use crate::driver::{DATA, Driver, enabled};
use crate::machine::{CMB, PAGE, pattern};
use peerbar_rig::nvme::command::{Command, READ, WRITE, blocks, sc};

/// Stores `data` and makes a command with these PRPs read it back into `pages`, the first from an
/// offset on.
fn reads_into(driver: &mut Driver, len: usize, prp1: u64, prp2: u64, pages: &[u64]) {
    let data = pattern(len, 9);
    driver.store(0, &data);
    for page in pages {
        driver.write(page / PAGE * PAGE, &[0xa5; PAGE as usize]);
    }
    driver.ok(1, blocks(READ, 0, len as u32 / 512).at(prp1, prp2));
    let mut found = Vec::new();
    for page in pages {
        found.extend(driver.read(*page, (PAGE - page % PAGE) as usize));
    }
    let beyond = found.split_off(len);
    assert!(found == data, "{len} bytes at {prp1:#x}, {prp2:#x}");
    assert!(
        beyond.iter().all(|byte| *byte == 0xa5),
        "no byte beyond the data"
    );
}

fn list(driver: &Driver, at: u64, entries: &[u64]) {
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect();
    driver.write(at, &bytes);
}

/// Address of lists that the driver's own transfers do not touch.
const LIST: u64 = crate::driver::LIST + 0x1_0000;

/// Some pages, in no particular order.
const PAGES: [u64; 4] = [
    DATA + 9 * PAGE,
    DATA + 3 * PAGE,
    DATA + 7 * PAGE,
    DATA + 5 * PAGE,
];

#[test]
fn one_or_two_pages_need_no_list() {
    let mut driver = enabled();
    let [a, b, ..] = PAGES;
    reads_into(&mut driver, 512, a + 0x200, u64::MAX, &[a + 0x200]);
    reads_into(&mut driver, 4096, a, 0, &[a]);
    reads_into(&mut driver, 4096, a + 4, b, &[a + 4, b]);
    reads_into(&mut driver, 8192, a, b, &[a, b]);
    reads_into(&mut driver, 1024, a + 0xe00, b, &[a + 0xe00, b]);
}

#[test]
fn a_list_may_start_anywhere_in_its_page_and_go_on_in_another() {
    let mut driver = enabled();
    let [a, b, c, d] = PAGES;
    let end = LIST + PAGE - 8;
    list(&driver, LIST, &[b, c, d]);
    reads_into(&mut driver, 4 * 4096, a, LIST, &PAGES);
    list(&driver, LIST + 0x8f8, &[b, c, d]);
    reads_into(
        &mut driver,
        3 * 4096 + 512,
        a + 0x800,
        LIST + 0x8f8,
        &[a + 0x800, b, c, d],
    );
    // The last slot of a page holds the only remaining entry, or the address of the next list.
    list(&driver, end - 8, &[b, c]);
    reads_into(&mut driver, 3 * 4096, a, end - 8, &[a, b, c]);
    list(&driver, end - 8, &[b, LIST + 2 * PAGE]);
    list(&driver, LIST + 2 * PAGE, &[c, d]);
    reads_into(&mut driver, 4 * 4096, a, end - 8, &PAGES);
    list(&driver, end, &[LIST + 2 * PAGE]);
    list(&driver, LIST + 2 * PAGE, &[b, c, d]);
    reads_into(&mut driver, 4 * 4096, a, end, &PAGES);
}

#[test]
fn lists_may_be_in_the_cmb() {
    let mut driver = enabled();
    let [a, b, c, d] = PAGES;
    let end = CMB + 2 * PAGE - 8;
    list(&driver, end - 8, &[b, CMB + 0x5000]);
    list(&driver, CMB + 0x5000, &[c, LIST]);
    reads_into(&mut driver, 3 * 4096 + 512, a, end - 8, &[a, b, c, LIST]);
    list(&driver, CMB + 0x5000, &[c, d]);
    reads_into(&mut driver, 4 * 4096, a, end - 8, &PAGES);
}

#[test]
fn the_largest_transfer_at_every_start_in_a_page() {
    let mut driver = enabled();
    let len = 32 * 4096;
    let data = pattern(len, 11);
    for offset in [0, 4, 0x204, 0xffc] {
        let at = DATA + offset;
        driver.write(at, &data);
        let write = driver.prps(blocks(WRITE, 100, 256), at, len, LIST + 0xf00);
        driver.ok(1, write);
        driver.write(at, &vec![0; len]);
        let read = Command {
            opcode: READ,
            ..write
        };
        driver.ok(1, read);
        assert_eq!(driver.read(at, len), data, "from {offset:#x} on");
    }
}

#[test]
fn an_address_that_is_misaligned_is_an_invalid_offset() {
    let mut driver = enabled();
    let [a, b, c, _] = PAGES;
    list(&driver, LIST, &[b, c + 0x200]);
    list(&driver, LIST + PAGE, &[b + 8, c]);
    for (len, prp1, prp2) in [
        (1, a + 2, 0),
        (16, a, b + 0x200),
        (24, a, LIST + 4),
        (24, a, LIST),
        (24, a, LIST + PAGE),
    ] {
        for opcode in [READ, WRITE] {
            let code = driver.code(1, blocks(opcode, 0, len).at(prp1, prp2));
            assert_eq!(code, sc::PRP_INVALID_OFFSET, "{prp1:#x}, {prp2:#x}");
        }
    }
}

#[test]
fn a_chain_that_leads_to_itself_ends() {
    let mut driver = enabled();
    let end = LIST + PAGE - 8;
    list(&driver, end, &[end]);
    let code = driver.code(1, blocks(READ, 0, 24).at(DATA, end));
    assert_eq!(code, sc::PRP_INVALID_OFFSET);
}
