//! Servers below a switch, one elsewhere, and the memory that they transfer to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use peerbar_nvme_spec::dma_log::{self, Entry, Purpose, Route};
use vfio_user::Client;

use super::copy_engine;
use super::messages::{Asked, Messages};
use crate::controller::Controller;
use crate::cpu_time::cpu_time;
use crate::memory::{BusMemory, SharedMemory};
use crate::server::Server;
use crate::vfio_user::{bar_memory, place_bar};
use crate::{Error, Options};

/// The BAR with memory of either kind of device.
const MEMORY_BAR: u8 = 2;
/// Where the devices see guest RAM, VRAM and the CMB.
const RAM: u64 = 1 << 32;
const VRAM: u64 = 1 << 38;
const CMB: u64 = 1 << 39;
/// How much there is of VRAM and of the CMB.
const BAR_BYTES: u64 = 64 << 20;
/// Bytes of a disk, beyond the caches of most processors, and of its blocks.
pub(crate) const DISK_BYTES: u64 = 128 << 20;
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// What each disk's driver needs for queues and PRP lists.
const DRIVER_BYTES: usize = 4 << 20;

/// The devices, as they are told apart in what was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerDevice {
    /// A disk with a CMB, below the switch.
    Near,
    /// Another disk below the switch.
    Other,
    /// A disk that is not below the switch, and has to ask its client for whatever is no guest RAM.
    Far,
    /// The GPU, below the switch.
    Gpu,
}

/// Payload that devices have moved, in bytes, by route.
pub(crate) type Traffic = BTreeMap<(PeerDevice, Route), u64>;

/// All of it.
pub(crate) struct SwitchSetup {
    pub(crate) near: Controller,
    pub(crate) other: Controller,
    pub(crate) far: Controller,
    pub(crate) gpu: Rc<RefCell<Client>>,
    pub(crate) ram: BusMemory,
    pub(crate) vram: BusMemory,
    pub(crate) cmb: BusMemory,
    servers: [Server; 4],
    _messages: Messages,
    _switch: Server,
}

impl SwitchSetup {
    /// Starts the servers, and places their memory as a guest would, which has `ram_bytes` bytes of RAM.
    pub(crate) fn start(options: &Options, ram_bytes: usize) -> Result<Self, Error> {
        let switch = start(options, "peerbar-switch", &[])?;
        let switch_at = switch.socket().to_string_lossy().into_owned();
        let below = |name| ["--switch", &switch_at, "--port-name", name];
        let bar_bytes = BAR_BYTES.to_string();
        let servers = [
            disk(
                options,
                &[&below("near")[..], &["--cmb", &bar_bytes]].concat(),
            )?,
            disk(options, &below("other"))?,
            disk(options, &[])?,
            start(
                options,
                "peerbar-gpu",
                &[&below("gpu")[..], &["--vram", &bar_bytes]].concat(),
            )?,
        ];
        let [near, other, far, gpu] = servers.each_ref().map(Server::socket);
        let (memory, file) = SharedMemory::create(ram_bytes)?;
        let ram = bus_memory(RAM, memory);
        let bytes = u64::try_from(ram_bytes).unwrap_or(u64::MAX);
        let disk = |socket: &Path| {
            let controller = Controller::bring_up(socket, DRIVER_BYTES)?;
            controller.map(&file, 0, RAM, bytes)?;
            Ok::<_, Error>(controller)
        };
        let near = disk(&near)?;
        let cmb = bus_memory(CMB, near.open_cmb(MEMORY_BAR, CMB)?);
        let mut gpu = Client::new(&gpu)?;
        gpu.dma_map(0, RAM, bytes, file.as_raw_fd())?;
        place_bar(&mut gpu, MEMORY_BAR, VRAM)?;
        let vram = bus_memory(VRAM, bar_memory(&gpu, MEMORY_BAR)?);
        let asked = [&cmb, &vram].map(|at| Asked {
            address: at.address,
            memory: at.memory.clone(),
        });
        let messages = Messages::before(&far, asked.into())?;
        let far = disk(&messages.socket())?;
        for at in [&cmb, &vram] {
            // Of which it does not get to see the file.
            far.map(&file, 0, at.address, BAR_BYTES)?;
        }
        Ok(Self {
            near,
            other: disk(&other)?,
            far,
            gpu: Rc::new(RefCell::new(gpu)),
            ram,
            vram,
            cmb,
            servers,
            _messages: messages,
            _switch: switch,
        })
    }

    /// What the devices have moved so far, by their own record.
    pub(crate) fn traffic(&mut self) -> Result<Traffic, Error> {
        let logs = [
            (PeerDevice::Near, self.near.dma_log()?),
            (PeerDevice::Other, self.other.dma_log()?),
            (PeerDevice::Far, self.far.dma_log()?),
            (
                PeerDevice::Gpu,
                copy_engine::dma_log(&mut self.gpu.borrow_mut())?,
            ),
        ];
        let mut traffic = Traffic::new();
        for (device, log) in logs {
            let entries = dma_log::parse(&log).map_err(Error::DmaLog)?;
            let payload = |entry: &&Entry| entry.purpose == Purpose::Payload;
            for entry in entries.iter().filter(payload) {
                *traffic.entry((device, entry.route)).or_default() += entry.bytes;
            }
        }
        Ok(traffic)
    }

    /// Time that all servers have had on a processor so far.
    pub(crate) fn cpu_time(&self) -> Result<Duration, Error> {
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

/// Starts one of the programs that lie beside the controller's.
fn start(options: &Options, program: &str, words: &[&str]) -> Result<Server, Error> {
    let program = options.server.with_file_name(program);
    Server::start(&options.under, &program, words)
}

fn disk(options: &Options, place: &[&str]) -> Result<Server, Error> {
    let (namespace, block) = (format!("ram={DISK_BYTES}"), BLOCK_BYTES.to_string());
    let mut words = vec![
        "--serial",
        "bench",
        "--block-size",
        &block,
        "--namespace",
        &namespace,
    ];
    words.extend(place);
    words.extend(options.words.iter().map(String::as_str));
    Server::start(&options.under, &options.server, words)
}
