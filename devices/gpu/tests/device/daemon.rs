//! The daemon as a process, with a foreign client.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use peerbar_dma_log::counter_file::{DeviceCounters, Reader};
use peerbar_dma_log::{Direction, Purpose, Route};
use peerbar_rig::gpu::Command;
use peerbar_rig::{
    Daemon, DaemonCommand, GuestRam, check_former_client, check_killed_server, wait_until,
};
use rustix::process::Signal;
use vfio_user::Client;

const RAM: u64 = 0x1000_0000;
const RAM_BYTES: u64 = 1 << 20;

fn start(args: &[&str]) -> Daemon {
    command().file("--counters", "counters").args(args).start()
}

fn command() -> DaemonCommand {
    DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-gpu"))
}

fn client(daemon: &Daemon) -> Client {
    daemon.connect(Client::new)
}

fn counters(daemon: &Daemon) -> DeviceCounters {
    let reader = Reader::open(&daemon.folder().join("counters"));
    reader.unwrap().read().unwrap()
}

/// The number that counters have for the process.
fn number(daemon: &Daemon) -> u32 {
    u32::try_from(daemon.pid().as_raw_pid()).unwrap()
}

#[test]
fn vram_takes_no_memory_of_the_host_before_it_is_touched() {
    const MIB: u64 = 1 << 20;
    let daemon = start(&["--vram", "4G", "--aperture", "256M"]);
    let mut client = client(&daemon);
    let vram = client.region(2).unwrap().file_offset.as_ref();
    let file = vram.unwrap().file().try_clone().unwrap();
    let on_host = || file.metadata().unwrap().blocks() * 512;
    assert_eq!((file.metadata().unwrap().len(), on_host()), (4096 * MIB, 0));
    file.write_all_at(&[1], 255 * MIB).unwrap();
    client.region_read(2, 255 * MIB, &mut [0]).unwrap();
    // Pages of the host may be huge.
    assert!((1..=2 * MIB).contains(&on_host()), "{}", on_host());
    let resident = daemon.resident_bytes();
    assert!(resident < 64 * MIB, "{resident}");
}

#[test]
fn former_client_sees_nothing_of_the_next_ones_memory() {
    let daemon = start(&["--vram", "16M", "--aperture", "4M"]);
    drop(check_former_client(&daemon, 2, 0x12_3400));
    let mut client = check_former_client(&daemon, 0, 0x8040);
    let mut words = [0; 8];
    client.region_read(0, 0x8040, &mut words).unwrap();
    assert_eq!(words, [9, 9, 9, 9, 1, 0, 0, 0], "the engine needs a kick");
}

#[test]
fn next_client_does_not_see_the_former_dma_log() {
    const ASK: u64 = 0x50;
    const DMA_LOG: u64 = 0xc000;
    let daemon = start(&["--vram", "16M"]);
    let log = |ask: bool| {
        let mut client = client(&daemon);
        if ask {
            client.region_write(0, ASK, &[1, 0, 0, 0]).unwrap();
        }
        let mut page = [0; 64];
        client.region_read(0, DMA_LOG, &mut page).unwrap();
        page
    };
    assert_ne!(log(true), [0; 64]);
    assert_eq!(log(false), [0; 64]);
}

#[test]
fn requests_to_a_killed_server_are_refused() {
    check_killed_server(&mut start(&["--vram", "16M"]));
}

#[test]
fn daemon_shows_its_regions() {
    let daemon = start(&["--vram", "4G", "--aperture", "256M"]);
    let mut client = client(&daemon);
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
    let daemon = start(&["--mode", "window", "--vram", "4M"]);
    let mut client = client(&daemon);
    let aperture = client.region(2).unwrap();
    assert_eq!((aperture.flags, aperture.size), (3, 4 << 20));
    let mut data = [0; 16];
    client.region_read(2, 0x1_0000, &mut data).unwrap();
    assert_eq!(data, [0xff; 16]);
}

#[test]
fn copies_from_client_memory_into_lent_vram_are_counted() {
    let daemon = start(&["--vram", "2M"]);
    let mut client = client(&daemon);
    let ram = GuestRam::new(RAM, RAM_BYTES);
    let lent = client.dma_map(0, RAM, RAM_BYTES, ram.file.as_raw_fd());
    lent.unwrap();
    client.region_write(7, 4, &[0b110, 0]).unwrap();
    ram.store(RAM + 0x2000, b"peer to peer");
    let copy = Command::copy(0b10, RAM + 0x2000, 0x4000, 12);
    ram.store(RAM, &copy.encode(0b001, (RAM + 0x3000, 1)));
    client.region_write(0, 0x1000, &RAM.to_le_bytes()).unwrap();
    client.region_write(0, 0x100c, &2u32.to_le_bytes()).unwrap();
    client.region_write(0, 0x1010, &1u32.to_le_bytes()).unwrap();
    client.region_write(0, 0x8000, &1u32.to_le_bytes()).unwrap();
    wait_until("the fence", || {
        (ram.load(RAM + 0x3000, 8) == 1u64.to_le_bytes()).then_some(())
    });
    let vram = client.region(2).unwrap();
    let mut data = [0; 12];
    let file = vram.file_offset.as_ref().unwrap().file();
    file.read_exact_at(&mut data, 0x4000).unwrap();
    assert_eq!(&data, b"peer to peer");
    let entries = counters(&daemon).entries;
    let payload = entries.iter().filter(|e| e.purpose == Purpose::Payload);
    let payload: Vec<_> = payload.map(|e| (e.route, e.direction, e.bytes)).collect();
    assert_eq!(payload, [(Route::GuestRam, Direction::Read, 12)]);
}

#[test]
fn counters_outlive_a_daemon_that_is_killed() {
    let mut daemon = start(&["--vram", "2M"]);
    let before = counters(&daemon);
    assert_eq!((before.process, before.entries), (number(&daemon), vec![]));
    daemon.kill();
    assert_eq!(counters(&daemon).process, number(&daemon));
}

#[test]
fn counters_are_read_while_the_daemon_is_stopped() {
    let daemon = start(&["--vram", "2M"]);
    daemon.signal(Signal::STOP);
    let state = daemon.proc_path("stat");
    wait_until("a stop", || {
        let stat = fs::read_to_string(&state).unwrap();
        stat.contains(") T ").then_some(())
    });
    assert_eq!(counters(&daemon).process, number(&daemon));
    daemon.signal(Signal::CONT);
}

#[test]
fn a_client_that_comes_back_finds_the_device_reset() {
    let daemon = start(&["--vram", "2M"]);
    let mut client = client(&daemon);
    client.region_write(0, 0x1010, &1u32.to_le_bytes()).unwrap();
    client.region_write(7, 4, &[0b110, 0]).unwrap();
    drop(client);
    let mut client = self::client(&daemon);
    let mut control = [0; 4];
    client.region_read(0, 0x1010, &mut control).unwrap();
    assert_eq!(control, [0; 4]);
    client.region_read(7, 4, &mut control).unwrap();
    assert_eq!(control[0], 0);
}

#[test]
fn sigterm_ends_it_well() {
    let mut daemon = start(&[]);
    assert_eq!(daemon.terminate().code, Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    for (args, said) in [
        (["--vram", "3M", "--mode", "static"], "VRAM of 3M: "),
        (["--vram", "4M", "--aperture", "8M"], "make VRAM larger"),
        (["--vram", "64M", "--aperture", "3M"], "try 4M"),
        (["--vram", "64G", "--aperture", "32G"], "from 2M to 16G"),
    ] {
        let exit = command().args(args).refused();
        assert_eq!(exit.code, Some(2), "{exit:?}");
        let line = exit.line();
        assert!(
            line.starts_with("peerbar-gpu: ") && line.contains(said),
            "{line}"
        );
    }
    let exit = command().args(["--mode", "moving"]).refused();
    assert_eq!(exit.code, Some(2));
    let exit = command().socket("/nonexistent/socket").refused();
    assert_eq!(exit.code, Some(69), "{}", exit.line());
}
