//! Guest RAM whose pages lie at unrelated places, as behind an IOMMU that maps page by page.

use crate::driver::{DATA, LIST, disabled, queues};
use crate::machine::{config, pattern};
use peerbar_rig::nvme::command::{READ, WRITE, blocks};

#[test]
fn queues_lists_and_data_cross_pages_that_are_no_neighbours() {
    let mut driver = disabled(&config());
    driver.scatter_ram();
    driver.bring_up();
    driver.create_pair(2, queues(DATA, DATA + 0x1_0000, 256, 1024));
    let (from, to) = (DATA + 0x10_0204, DATA + 0x20_0800);
    let len = 32 * 4096;
    let data = pattern(len, 61);
    driver.write(from, &data);
    let write = driver.prps(blocks(WRITE, 0, 256), from, len, LIST + 0xfc0);
    // The list crosses into the next page, where the chain must continue.
    let entries = driver.read(LIST + 0xff8, 8 * 26);
    driver.write(LIST + 0x2000, &entries);
    driver.write(LIST + 0xff8, &(LIST + 0x2000).to_le_bytes());
    driver.ok(2, write);
    let read = driver.prps(blocks(READ, 0, 256), to, len, LIST);
    for _ in 0..300 {
        driver.ok(2, read);
    }
    assert_eq!(driver.read(to, len), data);
}
