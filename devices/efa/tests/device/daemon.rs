//! The daemon as a process, with a foreign client.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use peerbar_efa_spec::admin::Opcode;
use peerbar_efa_spec::admin::feature::{FeatureCommand, NetworkAttributes, id};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfio_user::Client;
use zerocopy::FromZeros;

use crate::driver::{Driver, Link, MEMORY};
use crate::objects::allocate;
use crate::transfers;

struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_peerbar-efa"))
            .arg("--socket-path")
            .arg(folder.path().join("socket"))
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

impl Link for Client {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        self.region_read(region, offset, data).unwrap();
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.region_write(region, offset, data).unwrap();
    }

    fn map(&mut self, iova: u64, size: u64, memory: &File) {
        self.dma_map(0, iova, size, memory.as_raw_fd()).unwrap();
    }

    /// As user space does, which has mapped it.
    fn write_send_queue(&mut self, offset: u64, data: &[u8]) {
        let memory = self.region(MEMORY).unwrap().file_offset.as_ref();
        memory.unwrap().file().write_all_at(data, offset).unwrap();
    }
}

#[test]
fn it_shows_its_regions_and_its_identity() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.client();
    assert_eq!(client.region(0).unwrap().size, 0x4000);
    let memory = client.region(2).unwrap();
    let areas = &memory.sparse_areas;
    assert_eq!(memory.size, 64 << 20);
    let areas: Vec<_> = areas.iter().map(|area| (area.offset, area.size)).collect();
    let (polled, queues) = ((16 << 20, 1 << 20), (32 << 20, 32 << 20));
    assert_eq!(areas, [polled, queues], "no doorbell that is a message");
    assert_eq!(client.get_irq_info(2).unwrap().count, 33);
    let mut identity = [0; 4];
    client.region_read(7, 0, &mut identity).unwrap();
    assert_eq!(identity, [0x0f, 0x1d, 0xa3, 0xef]);
    let mut class = [0; 4];
    client.region_read(7, 8, &mut class).unwrap();
    assert_eq!(class, [0, 0, 0, 2]);
}

#[test]
fn daemon_is_brought_up_by_one_client_after_another() {
    let daemon = Daemon::start(&["--gid", "fe80::7"]);
    for _ in 0..3 {
        let mut driver = Driver::of(daemon.client());
        driver.bring_up();
        let mut command = FeatureCommand::new_zeroed();
        command.select.id = id::NETWORK_ATTRIBUTES;
        let network: NetworkAttributes = driver.execute(Opcode::GetFeature, &command).view();
        assert_eq!(network.gid[15], 7);
        assert_eq!(allocate(&mut driver, Opcode::AllocPd), 0);
    }
}

#[test]
fn data_moves_between_queue_pairs_of_a_foreign_client() {
    let daemon = Daemon::start(&[]);
    let mut driver = Driver::of(daemon.client());
    driver.bring_up();
    transfers::every_operation_moves_its_bytes(driver);
}

#[test]
fn sigterm_ends_it_well() {
    let mut daemon = Daemon::start(&[]);
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    assert!(!daemon.folder.path().join("socket").exists());
}

/// What the daemon says to a command line that cannot be.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_peerbar-efa"))
        .arg("--socket-path")
        .arg(folder.path().join("socket"))
        .args(args)
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    (output.status.code(), message)
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let (code, message) = refused(&["--gid", "::"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.starts_with("peerbar-efa: GID ::"), "{message}");
    let (code, message) = refused(&["--fabric", "/nonexistent/fabric"]);
    assert_eq!(code, Some(69), "{message}");
    assert!(message.contains("/nonexistent/fabric"), "{message}");
    let name = ["--fabric", "/nonexistent/fabric", "--fabric-name", "a b"];
    let (code, message) = refused(&name);
    assert_eq!(code, Some(2), "{message}");
}
