//! A client that turns memory and descriptors that it has passed to the daemon against it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use peerbar_rig::nvme::{RAM, RAM_BYTES};
use peerbar_rig::{Client, TIME_OUT};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use crate::driver;
use crate::process::start;
use crate::silent_file::{FLUSH, SilentFile};

/// VFIO_PCI_INTX_IRQ_INDEX and VFIO_PCI_MSIX_IRQ_INDEX.
const INTERRUPTS: [u32; 2] = [0, 2];

/// Keeps an eventfd full, and O_NONBLOCK off except for an instant, until `stop` is set or the test
/// has failed.
fn fill(event: &OwnedFd, stop: &AtomicBool) {
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && start.elapsed() < 2 * TIME_OUT {
        fcntl_setfl(event, OFlags::NONBLOCK).unwrap();
        // Fails unless the daemon has taken its signals back.
        let _ = rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes());
        fcntl_setfl(event, OFlags::empty()).unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn splits_of_a_mapping_take_no_memory_without_bound() {
    /// The most mappings that a client may have (vfio-user, max_dma_maps).
    const MAPPINGS: u64 = 65535;
    let daemon = start(&["--namespace", "ram=1M"]);
    let before = daemon.resident_bytes();
    let client = Client::connect(daemon.socket()).unwrap();
    client.map((1 << 40, 1 << 40), None).unwrap();
    let hole = |page: u64| ((1 << 40) + 0x1000 + page * 0x2000, 0x1000);
    (2..MAPPINGS).for_each(|page| client.post_unmap(hole(page)));
    client.unmap(hole(0)).unwrap();
    assert_eq!(client.unmap(hole(1)), Err(Errno::NOSPC));
    client.unmap((1 << 40, 1 << 40)).unwrap();
    drop(client);
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

#[test]
fn eventfd_that_its_client_keeps_full_blocks_nothing() {
    for index in INTERRUPTS {
        let mut daemon = start(&["--namespace", "ram=1M"]);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let stop = AtomicBool::new(false);
        let mut hostile = driver(&daemon);
        hostile.link.signal_by(index, event.as_fd());
        std::thread::scope(|scope| {
            scope.spawn(|| fill(&event, &stop));
            for _ in 0..200 {
                assert_eq!(hostile.serial(), "test");
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(hostile);
        assert_eq!(driver(&daemon).serial(), "test");
        assert_eq!(daemon.terminate().code, Some(0));
    }
}

#[test]
#[ignore = "mounts a file system: needs root"]
fn silent_file_of_fuse_delays_no_client() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    let file = SilentFile::new();
    let hostile = Client::connect(daemon.socket()).unwrap();
    let maps = |number| {
        let span = (RAM + number * RAM_BYTES, RAM_BYTES);
        hostile.map(span, Some(file.as_fd())).is_ok()
    };
    // More than may wait to be closed.
    assert_eq!((0..80).map(maps).filter(|maps| *maps).count(), 64);
    assert_eq!(file.awaited(), FLUSH, "only close(2) may ask for the file");
    hostile.reset();
    drop(hostile);
    let mut driver = driver(&daemon);
    assert_eq!(driver.serial(), "test");
    let requests = driver.link.upstream().seen();
    assert_eq!(requests, [], "its memory is mapped");
    drop(driver);
    // A process ends only once its thread's close(2) returns.
    drop(file);
    assert_eq!(daemon.terminate().code, Some(0));
}
