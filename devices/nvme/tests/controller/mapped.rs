//! Doorbells in a page that the guest has mapped.

use peerbar_nvme::{Config, PollPolicy, Source};

use crate::driver::{DATA, enabled_with, queues};
use crate::machine::config;
use peerbar_rig::nvme::command::{VERIFY, blocks, get_feature};

/// The admin queue's doorbells.
const ADMIN_TAIL: u64 = 0x1000;
const ADMIN_HEAD: u64 = 0x1004;

#[test]
fn mapped_admin_doorbell_is_seen_while_a_worker_is_busy() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 24).unwrap();
    let mut driver = enabled_with(&Config {
        poll: PollPolicy::Always,
        spare_queues: 0,
        workers: 1,
        block_bytes: 4096,
        namespaces: vec![Source::File(image.path().into())],
        io_uring: false,
        ..config()
    });
    driver.create_pair(2, queues(DATA, DATA + 0x2_0000, 2048, 2048));
    for _ in 0..2047 {
        driver.put(2, blocks(VERIFY, 0, 1 << 12));
    }
    driver.ring(2);
    // More than one, because the engine may still be awake from earlier work.
    for _ in 0..3 {
        driver.put(0, get_feature(0x07, 0, 0));
        let tail = driver.pair(0).tail().into();
        driver.write_mapped(ADMIN_TAIL, tail);
        driver.take_silently(0);
        let head = driver.pair(0).head().into();
        driver.write_mapped(ADMIN_HEAD, head);
    }
    let done = std::iter::from_fn(|| driver.poll(2)).count();
    assert!(done < 2047, "only once there was nothing else to do");
}
