//! The daemon as a process, with a foreign client.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use peerbar_dma_log::counter_file::{DeviceCounters, Reader};
use peerbar_dma_log::{Direction, Purpose, Route};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfio_user::Client;

const RAM: u64 = 0x1000_0000;
const RAM_BYTES: u64 = 1 << 20;

struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_peerbar-gpu"))
            .arg("--socket-path")
            .arg(folder.path().join("socket"))
            .arg("--counters")
            .arg(folder.path().join("counters"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let daemon = Self { child, folder };
        assert_eq!(line, "ready\n");
        daemon
    }

    fn counters(&self) -> DeviceCounters {
        let reader = Reader::open(&self.folder.path().join("counters"));
        reader.unwrap().read().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(&self.folder.path().join("socket")).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the test has ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the daemon says to a command line that cannot be.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_peerbar-gpu"))
        .args(args)
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Resident memory of the daemon, in bytes (proc(5), `VmRSS`).
fn resident(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn vram_takes_no_memory_of_the_host_before_it_is_touched() {
    const MIB: u64 = 1 << 20;
    let daemon = Daemon::start(&["--vram", "4G", "--aperture", "256M"]);
    let mut client = daemon.client();
    let vram = client.region(2).unwrap().file_offset.as_ref();
    let file = vram.unwrap().file().try_clone().unwrap();
    let on_host = || file.metadata().unwrap().blocks() * 512;
    assert_eq!((file.metadata().unwrap().len(), on_host()), (4096 * MIB, 0));
    file.write_all_at(&[1], 255 * MIB).unwrap();
    client.region_read(2, 255 * MIB, &mut [0]).unwrap();
    // Pages of the host may be huge.
    assert!((1..=2 * MIB).contains(&on_host()), "{}", on_host());
    let resident = resident(&daemon);
    assert!(resident < 64 * MIB, "{resident}");
}

#[test]
fn it_shows_its_regions() {
    let daemon = Daemon::start(&["--vram", "4G", "--aperture", "256M"]);
    let mut client = daemon.client();
    let registers = client.region(0).unwrap();
    let areas = &registers.sparse_areas;
    assert_eq!(registers.size, 0x1_0000);
    assert_eq!(
        (areas.len(), areas[0].offset, areas[0].size),
        (1, 0x8000, 0x1000)
    );
    let aperture = client.region(2).unwrap();
    assert_eq!(aperture.size, 256 << 20);
    assert!(aperture.file_offset.is_some() && aperture.sparse_areas.is_empty());
    let mut id = [0; 4];
    client.region_read(7, 0, &mut id).unwrap();
    assert_eq!(id, [0xf4, 0x1a, 0xf0, 0x10]);
    let msi_x = client.get_irq_info(2).unwrap();
    assert_eq!(msi_x.count, 17);
}

#[test]
fn a_window_is_not_lent() {
    let daemon = Daemon::start(&["--mode", "window", "--vram", "4M"]);
    let mut client = daemon.client();
    let aperture = client.region(2).unwrap();
    assert_eq!((aperture.flags, aperture.size), (3, 4 << 20));
    let mut data = [0; 16];
    client.region_read(2, 0x1_0000, &mut data).unwrap();
    assert_eq!(data, [0xff; 16]);
}

#[test]
fn copies_from_client_memory_into_lent_vram_are_counted() {
    let daemon = Daemon::start(&["--vram", "2M"]);
    let mut client = daemon.client();
    let ram = memory();
    client.dma_map(0, RAM, RAM_BYTES, ram.as_raw_fd()).unwrap();
    client.region_write(7, 4, &[0b110, 0]).unwrap();
    ram.write_all_at(b"peer to peer", 0x2000).unwrap();
    let mut copy = [0; 128];
    copy[0] = 1;
    copy[1] = 0b001;
    copy[2] = 0b10;
    for (at, number) in [
        (8, RAM + 0x3000),
        (16, 1),
        (24, RAM + 0x2000),
        (32, 0x4000),
        (40, 12),
    ] {
        copy[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    ram.write_all_at(&copy, 0).unwrap();
    client.region_write(0, 0x1000, &RAM.to_le_bytes()).unwrap();
    client.region_write(0, 0x100c, &2u32.to_le_bytes()).unwrap();
    client.region_write(0, 0x1010, &1u32.to_le_bytes()).unwrap();
    client.region_write(0, 0x8000, &1u32.to_le_bytes()).unwrap();
    let start = Instant::now();
    let mut fence = [0; 8];
    while fence != 1u64.to_le_bytes() {
        ram.read_exact_at(&mut fence, 0x3000).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "no fence");
    }
    let vram = client.region(2).unwrap();
    let mut data = [0; 12];
    let file = vram.file_offset.as_ref().unwrap().file();
    file.read_exact_at(&mut data, 0x4000).unwrap();
    assert_eq!(&data, b"peer to peer");
    let entries = daemon.counters().entries;
    let payload = entries.iter().filter(|e| e.purpose == Purpose::Payload);
    let payload: Vec<_> = payload.map(|e| (e.route, e.direction, e.bytes)).collect();
    assert_eq!(payload, [(Route::GuestRam, Direction::Read, 12)]);
}

#[test]
fn counters_outlive_a_daemon_that_is_killed() {
    let mut daemon = Daemon::start(&["--vram", "2M"]);
    let before = daemon.counters();
    assert_eq!(
        (before.process, before.entries),
        (daemon.child.id(), vec![])
    );
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert_eq!(daemon.counters().process, daemon.child.id());
}

#[test]
fn counters_are_read_while_the_daemon_is_stopped() {
    let daemon = Daemon::start(&["--vram", "2M"]);
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::STOP).unwrap();
    let state = format!("/proc/{}/stat", daemon.child.id());
    let start = Instant::now();
    while !fs::read_to_string(&state).unwrap().contains(") T ") {
        assert!(start.elapsed() < Duration::from_secs(20), "not stopped");
    }
    assert_eq!(daemon.counters().process, daemon.child.id());
    kill_process(pid, Signal::CONT).unwrap();
}

#[test]
fn a_client_that_comes_back_finds_the_device_reset() {
    let daemon = Daemon::start(&["--vram", "2M"]);
    let mut client = daemon.client();
    client.region_write(0, 0x1010, &1u32.to_le_bytes()).unwrap();
    client.region_write(7, 4, &[0b110, 0]).unwrap();
    drop(client);
    let mut client = daemon.client();
    let mut control = [0; 4];
    client.region_read(0, 0x1010, &mut control).unwrap();
    assert_eq!(control, [0; 4]);
    client.region_read(7, 4, &mut control).unwrap();
    assert_eq!(control[0], 0);
}

#[test]
fn sigterm_ends_it_well() {
    let mut daemon = Daemon::start(&[]);
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    assert!(!daemon.folder.path().join("socket").exists());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    for (args, said) in [
        (
            ["--vram", "3M", "--mode", "static"],
            "VRAM of 3145728 bytes",
        ),
        (["--vram", "4M", "--aperture", "8M"], "make VRAM larger"),
        (["--vram", "64M", "--aperture", "3M"], "try 4M"),
        (["--vram", "64G", "--aperture", "32G"], "from 2M to 16G"),
    ] {
        let (code, message) = refused(&[&["--socket-path", socket], &args[..]].concat());
        assert_eq!(code, Some(2), "{message}");
        assert!(
            message.starts_with("peerbar-gpu: ") && message.contains(said),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let (code, _) = refused(&["--socket-path", socket, "--mode", "moving"]);
    assert_eq!(code, Some(2));
    let (code, message) = refused(&["--socket-path", "/nonexistent/socket"]);
    assert_eq!((code, message.lines().count()), (Some(69), 1), "{message}");
}

fn memory() -> File {
    let fd = rustix::fs::memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, RAM_BYTES).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    File::from(fd)
}
