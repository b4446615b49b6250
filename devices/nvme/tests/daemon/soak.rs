//! Many sessions and long ones: descriptors, threads, mappings and memory stay as they are. `scripts/soak` runs them.

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::driver::{DATA, SUCCESS};
use crate::lifetime::{driver, image};
use crate::process::{Daemon, Usage};

/// Blocks of 512 bytes in an image.
const BLOCKS: u32 = 1 << 15;
/// Blocks of the largest transfer.
const MOST: u32 = 256;
/// What may be added to the resident memory of the start: pages of the allocator's.
const SLACK: u64 = 4 << 20;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[track_caller]
fn check_flat(before: &Usage, after: &Usage) {
    println!("before: {before:?}\nafter:  {after:?}");
    assert_eq!(
        (after.descriptors, after.threads),
        (before.descriptors, before.threads)
    );
    assert!(after.mappings <= before.mappings + 4);
    assert!(after.resident_bytes <= before.resident_bytes + SLACK);
}

#[test]
#[ignore = "takes long; scripts/soak runs it"]
fn usage_stays_over_many_connections() {
    let folder = TempDir::new().unwrap();
    let image = image(folder.path(), u64::from(BLOCKS) * 512);
    let daemon = Daemon::start(&["--namespace", &image, "--workers", "2"]);
    let session = |number: u64| {
        let mut driver = driver(&daemon);
        let byte = number.to_le_bytes()[0];
        driver.fill(byte, 8192);
        assert_eq!(driver.io(0x01, DATA, 16), SUCCESS);
        driver.fill(!byte, 8192);
        assert_eq!(driver.io(0x02, DATA, 16), SUCCESS);
        assert!(driver.data(8192).iter().all(|read| *read == byte));
    };
    // Within a session, so all of the one before is closed.
    let usage = || {
        let _client = driver(&daemon);
        daemon.usage()
    };
    (0..100).for_each(session);
    let before = usage();
    (0..number("PEERBAR_SOAK_CONNECTIONS", 10_000)).for_each(session);
    check_flat(&before, &usage());
}

#[test]
#[ignore = "takes long; scripts/soak runs it"]
fn usage_stays_over_long_mixed_transfers() {
    let folder = TempDir::new().unwrap();
    let image = image(folder.path(), u64::from(BLOCKS) * 512);
    let daemon = Daemon::start(&["--namespace", &image, "--workers", "2"]);
    let mut driver = driver(&daemon);
    let mut random = fastrand::Rng::with_seed(number("PEERBAR_SOAK_SEED", 1));
    let mut written = vec![0_u8; BLOCKS as usize];
    let mut transfer = || {
        let blocks = random.u32(1..=MOST);
        let first = random.u32(0..=BLOCKS - blocks);
        let (len, range) = (
            blocks as usize * 512,
            first as usize..(first + blocks) as usize,
        );
        if random.bool() {
            let byte = random.u8(..);
            driver.fill(byte, len);
            assert_eq!(driver.io_from(first, 0x01, DATA, blocks), SUCCESS);
            written[range].fill(byte);
            return;
        }
        assert_eq!(driver.io_from(first, 0x02, DATA, blocks), SUCCESS);
        let data = driver.data(len);
        for (block, expected) in data.chunks(512).zip(&written[range]) {
            assert!(
                block.iter().all(|byte| byte == expected),
                "block from {first} on"
            );
        }
    };
    (0..10_000).for_each(|_| transfer());
    let before = daemon.usage();
    let end = Instant::now() + Duration::from_secs(60 * number("PEERBAR_SOAK_MINUTES", 30));
    let mut transfers = 0_u64;
    while Instant::now() < end {
        transfer();
        transfers += 1;
    }
    println!("{transfers} transfers of up to {} KiB", MOST / 2);
    check_flat(&before, &daemon.usage());
    assert_eq!(
        fs::metadata(folder.path().join("disk.img")).unwrap().len(),
        u64::from(BLOCKS) * 512
    );
}
