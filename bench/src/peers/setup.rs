//! Servers below a switch, and the memory that they transfer to.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peerbar_lab::exit::Failure;
use peerbar_nvme_spec::dma_log::{self, Entry, Purpose, Route};
use vfio_user::Client;

use crate::controller::Controller;
use crate::cpu_time::cpu_time;
use crate::memory::{BusMemory, SharedMemory};
use crate::server::{Server, ServerCommand};
use crate::setup::DISK_BYTES;
use crate::vfio_user::{bar_memory, set_bar};

/// The BAR with memory of either kind of device.
const MEMORY_BAR: u8 = 2;
/// Where the devices see guest RAM, VRAM and the CMB.
const RAM: u64 = 1 << 32;
const VRAM: u64 = 1 << 38;
const CMB: u64 = 1 << 39;
/// How much there is of VRAM and of the CMB.
const BAR_BYTES: u64 = 64 << 20;
/// What each disk's driver needs for queues and PRP lists.
const DRIVER_BYTES: usize = 4 << 20;

/// The disks, as they are distinguished in what was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disk {
    /// The one with a CMB, which is read.
    Source,
    /// The one that is written.
    Target,
}

/// Payload that disks have moved, in bytes, by route.
pub(crate) type Traffic = BTreeMap<(Disk, Route), u64>;

/// Two disks and a GPU below a switch.
pub(crate) struct SwitchSetup {
    pub(crate) source: Controller,
    pub(crate) target: Controller,
    pub(crate) ram: BusMemory,
    pub(crate) vram: BusMemory,
    pub(crate) cmb: BusMemory,
    servers: [Server; 3],
    /// Its BAR is placed as long as its client is there.
    _gpu: Client,
    _switch: Server,
}

impl SwitchSetup {
    /// Starts the servers, and maps their memory as a guest would, which has `ram_bytes` bytes of RAM.
    pub(crate) fn start(command: &ServerCommand, ram_bytes: usize) -> Result<Self, Failure> {
        let switch = command.beside("peerbar-switch", &[])?;
        let switch_at = switch.socket().to_string_lossy().into_owned();
        let below = |name| ["--switch", &switch_at, "--port-name", name];
        let bar_bytes = BAR_BYTES.to_string();
        let namespace = || OsString::from(format!("ram={DISK_BYTES}"));
        let disk = |extra: &[&str]| command.controller([namespace()], extra);
        let servers = [
            disk(&[&below("source")[..], &["--cmb", &bar_bytes]].concat())?,
            disk(&below("target"))?,
            command.beside(
                "peerbar-gpu",
                &[&below("gpu")[..], &["--vram", &bar_bytes]].concat(),
            )?,
        ];
        let [source, target, gpu] = servers.each_ref().map(Server::socket);
        let (memory, file) = SharedMemory::create(ram_bytes)?;
        let bytes = u64::try_from(ram_bytes).unwrap_or(u64::MAX);
        let controller = |socket: &Path| {
            let controller = Controller::bring_up(socket, DRIVER_BYTES)?;
            controller.map(&file, 0, RAM, bytes)?;
            anyhow::Ok(controller)
        };
        let source = controller(&source)?;
        let cmb = bus_memory(CMB, source.open_cmb(MEMORY_BAR, CMB)?);
        let mut gpu = Client::new(&gpu).context("cannot connect to the GPU")?;
        set_bar(&mut gpu, MEMORY_BAR, VRAM)?;
        let vram = bus_memory(VRAM, bar_memory(&gpu, MEMORY_BAR)?);
        Ok(Self {
            source,
            target: controller(&target)?,
            ram: bus_memory(RAM, memory),
            vram,
            cmb,
            servers,
            _gpu: gpu,
            _switch: switch,
        })
    }

    /// What the disks have moved so far, by their own record.
    pub(crate) fn traffic(&mut self) -> anyhow::Result<Traffic> {
        let logs = [
            (Disk::Source, self.source.dma_log()?),
            (Disk::Target, self.target.dma_log()?),
        ];
        let mut traffic = Traffic::new();
        for (disk, log) in logs {
            let entries = dma_log::parse(&log).context("a disk's DMA log cannot be read")?;
            let payload = |entry: &&Entry| entry.purpose == Purpose::Payload;
            for entry in entries.iter().filter(payload) {
                *traffic.entry((disk, entry.route)).or_default() += entry.bytes;
            }
        }
        Ok(traffic)
    }

    /// Time that all servers have had on a processor so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.servers
            .iter()
            .map(|server| cpu_time(server.pid()))
            .sum()
    }
}

fn bus_memory(address: u64, memory: SharedMemory) -> BusMemory {
    BusMemory {
        memory: Arc::new(memory),
        address,
    }
}
