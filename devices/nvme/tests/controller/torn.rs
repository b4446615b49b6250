//! Logical blocks that several commands write and read at the same time. It takes many attempts: a
//! block is torn rarely.

use peerbar_nvme::{Config, Source};

use crate::driver::{DATA, ENTRIES, enabled_with, usual};
use crate::machine::{MIB, PAGE, config};
use peerbar_rig::nvme::command::{READ, WRITE, blocks};

const ROUNDS: usize = 600;

/// Two queues write a block, each its own byte, while a third one reads it.
fn hammer(config: &Config) {
    let mut driver = enabled_with(config);
    driver.create_pair(2, usual(2));
    driver.create_pair(3, usual(3));
    for id in [1_u8, 2] {
        driver.write(DATA + u64::from(id) * PAGE, &[id; PAGE as usize]);
    }
    driver.ok(1, blocks(WRITE, 0, 1).at(DATA + PAGE, 0));
    let count = ENTRIES - 1;
    let found = |number: u16| DATA + u64::from(8 + number) * PAGE;
    for round in 0..ROUNDS {
        for number in 0..count {
            for id in [1, 2] {
                driver.put(id, blocks(WRITE, 0, 1).at(DATA + u64::from(id) * PAGE, 0));
            }
            driver.put(3, blocks(READ, 0, 1).at(found(number), 0));
        }
        for id in [1, 2, 3] {
            driver.ring(id);
        }
        for id in [1, 2, 3] {
            for _ in 0..count {
                assert_eq!(driver.take(id).code(), 0);
            }
        }
        for number in 0..count {
            let block = driver.read(found(number), PAGE as usize);
            let is_whole = block.iter().all(|byte| *byte == block[0]);
            assert!(is_whole, "round {round}: a mix of two writes");
        }
    }
}

#[test]
#[ignore = "takes some ten seconds; scripts/test runs it"]
fn block_is_never_a_mix_of_two_writes() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(MIB).unwrap();
    let file = Source::File(image.path().into());
    for (source, workers, io_uring) in [
        (file.clone(), 1, true),
        (file.clone(), 3, true),
        (file, 3, false),
        (Source::Ram(MIB), 3, true),
    ] {
        hammer(&Config {
            block_bytes: 4096,
            namespaces: vec![source],
            workers,
            io_uring,
            ..config()
        });
    }
}
