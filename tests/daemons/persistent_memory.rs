//! A peer writes the Persistent Memory Region of a disk below the same switch, while registers, BAR
//! and server of the disk change.

use std::fs::File;
use std::path::PathBuf;

use anyhow::ensure;
use peerbar_dma::Purpose;
use peerbar_nvme_driver::Registers;
use peerbar_nvme_spec::pmr::Pmrsts;
use peerbar_nvme_spec::registers::offset::{PMRCTL, PMRSTS};
use peerbar_pci::Iova;
use peerbar_rig::{Client, Daemon, GuestRam, Link, Peer, REGISTERS};
use tempfile::TempDir;

use crate::machine::{RAM, RAM_BYTES};
use crate::server;

/// The addresses of the disk's registers, of its region, and of the peer's memory.
const DOORS: u64 = 3 << 36;
const REGION: u64 = 4 << 36;
const PEER: u64 = 5 << 36;
/// The BAR of the region.
const BAR: u32 = 4;
const BYTES: u64 = 2 << 20;
const NOT_READY: u32 = Pmrsts::new().with_nrdy(true).into_bits();

/// A disk and a peer below a switch.
struct Fixture {
    // First, so that it is dropped before the servers and does not see their end.
    peer: Peer,
    client: Client,
    disk: Daemon,
    switch: Daemon,
    kept: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    fn start() -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let kept = folder.path().join("pmr");
        File::create(&kept)?.set_len(BYTES)?;
        let switch = server::start("peerbar-switch", &[])?;
        let words = format!(
            "--switch {} --port-name disk0 --serial disk0 --namespace ram=1M --pmr {}",
            switch.socket().display(),
            kept.display()
        );
        let words: Vec<&str> = words.split(' ').collect();
        let disk = server::start("peerbar-nvme", &words)?;
        let client = connect(&disk)?;
        Ok(Self {
            peer: Peer::attach(switch.socket(), "peer0", PEER, BYTES),
            client,
            disk,
            switch,
            kept,
            _folder: folder,
        })
    }

    /// Writes `byte` at `offset` of a region at `address`, as the peer. Returns `true` if that
    /// succeeds; the file must have the byte then.
    fn writes(&self, address: u64, offset: u64, byte: u8) -> anyhow::Result<bool> {
        let requester = &self.peer.requester;
        let data = [byte; 8192];
        let written = requester.write(Purpose::Payload, Iova(address + offset), &data);
        if written.is_ok() {
            ensure!(self.file(offset)? == data, "the file has something else");
            let mut read = [0; 8192];
            requester.read(Purpose::Payload, Iova(address + offset), &mut read)?;
            ensure!(read == data, "the peer reads something else");
        }
        Ok(written.is_ok())
    }

    fn file(&self, offset: u64) -> anyhow::Result<Vec<u8>> {
        let bytes = std::fs::read(&self.kept)?;
        let start = usize::try_from(offset)?;
        Ok(bytes[start..start + 8192].to_vec())
    }

    fn end(self) -> anyhow::Result<()> {
        drop((self.peer, self.client));
        server::end(self.disk)?;
        server::end(self.switch)
    }
}

/// Connects a guest that has set the disk's BARs and enabled its region.
fn connect(disk: &Daemon) -> anyhow::Result<Client> {
    let ram = GuestRam::new(RAM, RAM_BYTES);
    let client = Client::attach(disk.socket(), &ram)?;
    client.set_bar(REGISTERS, DOORS)?;
    client.set_bar(BAR, REGION)?;
    client.write_register(PMRCTL, &1_u32.to_le_bytes())?;
    Ok(client)
}

fn status(registers: &impl Registers) -> u32 {
    let mut status = [0; 4];
    registers.read_register(PMRSTS, &mut status).unwrap();
    u32::from_le_bytes(status)
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn peer_writes_the_region_and_has_no_barrier() {
    let fixture = Fixture::start().unwrap();
    assert!(fixture.writes(REGION, 0x3000, 1).unwrap());
    let registers = fixture.peer.registers(DOORS);
    let mut value = [0; 4];
    assert!(registers.read_register(PMRSTS, &mut value).is_err());
    registers.read_register(PMRCTL, &mut value).unwrap();
    assert_eq!(value, [1, 0, 0, 0]);
    assert_eq!(status(&fixture.client), 0);
    let over = fixture
        .peer
        .requester
        .write(Purpose::Payload, Iova(REGION + BYTES - 8), &[1; 16]);
    assert!(over.is_err(), "beyond the region");
    fixture.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn hostile_guest_does_not_mix_up_what_a_peer_writes() {
    let fixture = Fixture::start().unwrap();
    for round in 0..30_u8 {
        let moved = REGION + (u64::from(round % 2) << 30);
        let register = |value: u32| {
            let written = fixture.client.write_register(PMRCTL, &value.to_le_bytes());
            written.unwrap();
        };
        match round % 3 {
            0 => {
                register(0);
                assert_eq!(status(&fixture.client), NOT_READY);
                register(1);
            }
            1 => fixture.client.set_bar(BAR, moved).unwrap(),
            _ => fixture.client.set_bar(BAR, REGION).unwrap(),
        }
        let here = if round % 3 == 1 { moved } else { REGION };
        assert!(
            fixture.writes(here, 0x5000, round).unwrap(),
            "round {round}"
        );
        let elsewhere = REGION + (2 << 30);
        assert!(!fixture.writes(elsewhere, 0x5000, 0xff).unwrap());
        assert_eq!(fixture.file(0x5000).unwrap(), [round; 8192]);
        fixture.client.set_bar(BAR, REGION).unwrap();
    }
    fixture.end().unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn region_outlives_a_disk_that_is_killed_under_a_peer() {
    let mut fixture = Fixture::start().unwrap();
    assert!(fixture.writes(REGION, 0x3000, 1).unwrap());
    server::kill(&mut fixture.disk).unwrap();
    assert_eq!(fixture.file(0x3000).unwrap(), [1; 8192]);
    fixture.disk.restart();
    assert!(!fixture.writes(REGION, 0x7000, 2).unwrap(), "no window yet");
    fixture.client = connect(&fixture.disk).unwrap();
    assert_eq!(fixture.file(0x3000).unwrap(), [1; 8192]);
    assert!(fixture.writes(REGION, 0x7000, 2).unwrap());
    assert_eq!(fixture.file(0x3000).unwrap(), [1; 8192]);
    fixture.end().unwrap();
}
