//! Faults of the device as a whole, as a client meets them: mappings that fail, a link that is
//! down, a loss of power.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use peerbar_flight::{Event, FlightFile};
use peerbar_rig::nvme::command::{FLUSH, READ, WRITE};
use peerbar_rig::nvme::{CC, DATA, Driver, RAM, RAM_BYTES};
use peerbar_rig::{Client, Guest, GuestRam, Link, REGISTERS, wait_for_event, wait_until};
use peerbar_vfio_user::CONFIG_REGION;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::process::start;
use crate::{SUCCESS, driver};

/// NVMe's VS register, and its value for 2.0.
const VERSION: (u64, [u8; 4]) = (8, [0, 0, 2, 0]);
/// VFIO_PCI_MSIX_IRQ_INDEX.
const MSI_X: u32 = 2;

fn inject(control: &Path, rule: &str) {
    let mut stream = UnixStream::connect(control).unwrap();
    writeln!(stream, "{rule}").unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    assert_eq!(answer, format!("ok in force: {rule}\n"));
}

#[test]
fn mapping_that_fails_is_answered_with_no_memory() {
    let rules = [
        "fail mapping address=0x20000000 nth=1",
        "delay mapping by=20ms nth=2",
    ];
    let faults = [
        "--namespace",
        "ram=1M",
        "--fault",
        rules[0],
        "--fault",
        rules[1],
    ];
    let daemon = start(&faults);
    let client = Client::connect(daemon.socket()).unwrap();
    let ram = GuestRam::new(RAM, RAM_BYTES);
    let map = |iova| client.map((iova, RAM_BYTES), Some(ram.file.as_fd()));
    assert_eq!(map(0x2000_0000), Err(Errno::NOMEM));
    let start = Instant::now();
    assert_eq!(map(RAM), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(map(0x2000_0000), Ok(()));
    let mut driver = Driver::enabled(Guest { link: client, ram });
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
}

#[test]
fn delayed_interrupt_comes_late() {
    let folder = TempDir::new().unwrap();
    let control = folder.path().join("control");
    let options = ["--control", control.to_str().unwrap()];
    let daemon = start(&[&["--namespace", "ram=1M"], &options[..]].concat());
    let mut driver = driver(&daemon);
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let start = Instant::now();
    inject(&control, "delay interrupt vector=0 by=20ms");
    // Admin commands raise vector 0. Once this one is complete, the earlier ones have done so.
    assert_eq!(driver.serial(), "test");
    driver.link.signal_by(MSI_X, event.as_fd());
    assert_eq!(driver.serial(), "test");
    wait_for_event(&event, "vector 0");
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn device_whose_link_is_down_is_reset_and_not_reached() {
    let folder = TempDir::new().unwrap();
    let control = folder.path().join("control");
    let options = [
        "--namespace",
        "ram=1M",
        "--control",
        control.to_str().unwrap(),
    ];
    let daemon = start(&options);
    let mut driver = driver(&daemon);
    driver.fill(0x5a, 4096);
    assert_eq!(driver.io(WRITE, DATA, 8), SUCCESS);
    driver.fill(0xff, 4096);
    inject(&control, "link-down device");
    driver.submit_io(READ, DATA, 8);
    assert_eq!(driver.link.bytes(CONFIG_REGION, 0), [0xff; 4]);
    assert_eq!(driver.link.bytes(REGISTERS, VERSION.0), [0xff; 4]);
    driver.link.set_command(0b110);
    inject(&control, "link-up device");
    assert_eq!(driver.link.bytes(CONFIG_REGION, 0), [0x36, 0x1b, 0x10, 0]);
    assert_eq!(driver.link.bytes(CONFIG_REGION, 4), [0; 2], "reset");
    assert_eq!(
        driver.link.bytes(REGISTERS, VERSION.0),
        [0xff; 4],
        "no memory space"
    );
    assert_eq!(driver.data(4096), [0xff; 4096], "no DMA");
    driver.link.turn_on().unwrap();
    assert_eq!(driver.link.bytes(REGISTERS, VERSION.0), VERSION.1);
    assert_eq!(driver.link.register(CC), 0);
    driver.ram.store(RAM, &[0; 0x8000]);
    driver.enable_polled();
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert_eq!(driver.data(4096), [0x5a; 4096]);
}

#[test]
fn link_that_goes_down_resets_the_device_at_once() {
    let folder = TempDir::new().unwrap();
    let [control, flight] = ["control", "flight"].map(|name| folder.path().join(name));
    let options = [
        ["--namespace", "ram=1M"],
        ["--control", control.to_str().unwrap()],
        ["--flight", flight.to_str().unwrap()],
    ];
    let daemon = start(&options.concat());
    let _driver = driver(&daemon);
    let file = FlightFile::open(&flight).unwrap();
    let since = file.read().unwrap().records.len();
    inject(&control, "link-down device");
    // The client is silent.
    let events = wait_until("a reset", || {
        let records = file.read().unwrap().records;
        let events = records.iter().skip(since).map(|record| record.event);
        let events: Vec<_> = events.collect();
        events.contains(&Event::Reset(true)).then_some(events)
    });
    assert!(matches!(events[0], Event::Injected(_)), "{events:?}");
    assert!(events.contains(&Event::BusMaster(false)), "{events:?}");
}

#[test]
fn link_that_goes_down_at_a_dma_comes_up_by_itself() {
    let rule = "link-down dma write for=20ms nth=2";
    let daemon = start(&["--namespace", "ram=1M", "--fault", rule]);
    let mut driver = driver(&daemon);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    driver.fill(0xff, 4096);
    let start = Instant::now();
    driver.submit_io(READ, DATA, 8);
    // The register reads as ones while the link is down, but that may be over before the test reads
    // it.
    wait_until("the reset at the link's end, and the link is up", || {
        (driver.link.bytes(CONFIG_REGION, 4) == [0; 2]).then_some(())
    });
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(driver.data(4096), [0xff; 4096], "the DMA is lost");
    driver.ram.store(RAM, &[0; 0x8000]);
    driver.enable_polled();
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
}

/// Returns the bytes of an image's blocks after a power loss: 64 were flushed as 1; then 0..64 were
/// written as 2, with 0..16 flushed, and then 32..48 as 3.
fn blocks_after_power_loss(options: &[&str]) -> Vec<u8> {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let namespace = format!("file={}", image.display());
    let words = [&["--namespace", &namespace], options].concat();
    let mut daemon = start(&words);
    let mut driver = driver(&daemon);
    let mut write = |byte, first, count| {
        driver.fill(byte, 32 << 10);
        assert_eq!(driver.io_from(first, WRITE, DATA, count), SUCCESS);
    };
    write(1, 0, 64);
    write(2, 0, 16);
    assert_eq!(driver.io(FLUSH, DATA, 1), SUCCESS);
    let mut write = |byte, first, count| {
        driver.fill(byte, 32 << 10);
        assert_eq!(driver.io_from(first, WRITE, DATA, count), SUCCESS);
    };
    write(2, 16, 48);
    write(3, 32, 16);
    // The flush during which the power is lost never completes.
    driver.submit_io(FLUSH, DATA, 1);
    wait_until("no power", || {
        (driver.link.bytes(CONFIG_REGION, 0) == [0xff; 4]).then_some(())
    });
    drop(driver);
    assert_eq!(daemon.terminate().code, Some(0));
    let bytes = std::fs::read(&image).unwrap();
    let blocks = bytes[..64 * 512].chunks(512).map(|block| {
        assert_eq!(block, [block[0]; 512], "no block is torn");
        block[0]
    });
    blocks.collect()
}

#[test]
fn power_loss_keeps_what_was_flushed_and_tears_at_blocks() {
    let of_power = |pattern| format!("lose-power command flush nth=2 pattern={pattern}");
    let mut seen = [0; 4];
    for io_uring in [true, false] {
        for pattern in 1..4 {
            let rule = of_power(pattern);
            let mut options = vec!["--fault", &rule];
            if !io_uring {
                options.push("--no-io-uring");
            }
            let blocks = blocks_after_power_loss(&options);
            assert_eq!(blocks[..16], [2; 16], "flushed");
            assert!(blocks[16..32].iter().all(|byte| [1, 2].contains(byte)));
            assert!(blocks[32..48].iter().all(|byte| [1, 2, 3].contains(byte)));
            assert!(blocks[48..].iter().all(|byte| [1, 2].contains(byte)));
            let unflushed = blocks[16..].iter();
            unflushed.for_each(|byte| seen[usize::from(*byte)] += 1);
            assert_eq!(blocks, blocks_after_power_loss(&options), "by the pattern");
        }
    }
    assert!(seen[1..].iter().all(|count| *count > 10), "{seen:?}");
}
