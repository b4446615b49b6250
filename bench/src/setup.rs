//! A server, our driver on it, and queues that are ready to be driven.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use hdrhistogram::Histogram;
use peerbar_lab::exit::Failure;
use tempfile::TempDir;

use crate::controller::Controller;
use crate::cpu_time::cpu_time;
use crate::drive::drive;
use crate::jobs::{Check, Extent, Fill, Scattered, Spot, Timed, count};
use crate::loaded_queue::{Buffer, Direction, LoadedQueue, Slot};
use crate::memory::PAGE;
use crate::scattered_pages::ScatteredPages;
use crate::server::{BLOCK_BYTES, Server, ServerCommand};

/// What all disks of a measurement hold together, beyond the caches of most processors.
pub(crate) const DISK_BYTES: u64 = 128 << 20;
/// Reads from each controller in a pass that compares data.
const CHECKED: u64 = 4096;

/// What to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Where namespaces are kept: `ram`, `null`, or `file`: images that are in the machine's page cache.
    pub(crate) backend: &'static str,
    /// Servers, each with one controller.
    pub(crate) devices: u16,
    /// Namespaces of each controller.
    pub(crate) namespaces: u32,
    /// Queues of each controller.
    pub(crate) queues: u16,
    /// Commands outstanding on each queue.
    pub(crate) depth: u16,
    /// Bytes of a transfer.
    pub(crate) bytes: usize,
    /// Mappings that hold the data of each controller, one page for each transfer; none: few and large ones.
    pub(crate) pieces: Option<usize>,
}

impl Setup {
    /// One command of 4 KiB at a time, on one disk in RAM.
    pub(crate) const ONE: Self = Self {
        backend: "ram",
        devices: 1,
        namespaces: 1,
        queues: 1,
        depth: 1,
        bytes: 4 << 10,
        pieces: None,
    };

    /// Starts a server; its images are made in `folder`.
    fn server(&self, command: &ServerCommand, folder: &Path) -> Result<Server, Failure> {
        let namespaces = (0..self.namespaces).map(|number| {
            let mut namespace = OsString::from(format!("{}=", self.backend));
            match self.backend {
                "file" => namespace.push(self.image(folder, number)?),
                _ => namespace.push(self.namespace_bytes().to_string()),
            }
            Ok(namespace)
        });
        let namespaces = namespaces.collect::<anyhow::Result<Vec<_>>>()?;
        command.controller(namespaces, &[])
    }

    fn image(&self, folder: &Path, number: u32) -> anyhow::Result<PathBuf> {
        let path = folder.join(format!("{number}.img"));
        File::create(&path)
            .and_then(|image| image.set_len(self.namespace_bytes()))
            .context("cannot make an image")?;
        Ok(path)
    }

    /// Size of each namespace in bytes.
    pub(crate) fn namespace_bytes(&self) -> u64 {
        DISK_BYTES / (u64::from(self.devices) * u64::from(self.namespaces))
    }

    fn extent(&self) -> Extent {
        let bytes = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        Extent {
            namespaces: self.namespaces,
            bytes,
            transfers: self.namespace_bytes() / bytes,
        }
    }

    /// Bytes of queues, shadow doorbells, data and PRP lists.
    fn memory_bytes(&self) -> usize {
        let commands = usize::from(self.queues) * usize::from(self.depth);
        let queue = 128 * usize::from(entries(self.depth)) + 2 * PAGE;
        commands * (self.bytes + PAGE) + usize::from(self.queues) * queue + 16 * PAGE
    }
}

/// Entries of queues for `depth` commands.
pub(crate) fn entries(depth: u16) -> u16 {
    (depth + 1).next_power_of_two().max(64)
}

/// What one round of transfers came to.
pub(crate) struct Round {
    /// Transfers a second.
    pub(crate) rate: f64,
    /// In nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Time on a processor of all servers for each transfer, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

/// Servers with their drivers.
pub(crate) struct Session {
    servers: Vec<Server>,
    /// Their images' folders.
    images: Vec<TempDir>,
    controllers: Vec<Controller>,
    /// As many for each controller, in its order.
    queues: Vec<LoadedQueue>,
    queues_each: usize,
    spots: Vec<Spot>,
    /// How many commands share them.
    commands: usize,
    extent: Extent,
    rng: Rng,
}

impl Session {
    /// Starts it all and fills the disks.
    pub(crate) fn start(command: &ServerCommand, setup: &Setup) -> Result<Self, Failure> {
        let mut session = Self {
            servers: Vec::new(),
            images: Vec::new(),
            controllers: Vec::new(),
            queues: Vec::new(),
            queues_each: usize::from(setup.queues),
            spots: Vec::new(),
            commands: usize::from(setup.depth),
            extent: setup.extent(),
            rng: Rng::with_seed(1),
        };
        for _ in 0..setup.devices {
            let images = TempDir::new().context("cannot create a folder for images")?;
            let server = setup.server(command, images.path())?;
            let mut controller = Controller::bring_up(&server.socket(), setup.memory_bytes())?;
            let scattered = setup
                .pieces
                .map(|pieces| ScatteredPages::map(&controller, pieces));
            let scattered = scattered.transpose()?;
            for _ in 0..setup.queues {
                let queue = load_queue(&mut controller, setup, scattered.as_ref())?;
                session.queues.push(queue);
            }
            session.spots = scattered.map_or_else(Vec::new, |pieces| pieces.spots);
            session.servers.push(server);
            session.images.push(images);
            session.controllers.push(controller);
        }
        session.fill()?;
        Ok(session)
    }

    /// How doorbells are rung.
    pub(crate) fn doorbells(&self) -> &'static str {
        self.controllers.first().map_or("", Controller::doorbells)
    }

    /// Transfers at random addresses for `time`, on all controllers at once.
    pub(crate) fn round(&mut self, direction: Direction, time: Duration) -> anyhow::Result<Round> {
        let before = self.cpu_time()?;
        let mut job = Scattered {
            job: Timed::new(direction, self.extent, self.rng.fork(), time),
            spots: &self.spots,
            commands: self.commands,
            rng: self.rng.fork(),
        };
        drive(&mut self.queues, &mut job)?;
        let job = job.job;
        let cpu = self.cpu_time()?.saturating_sub(before);
        Ok(Round {
            rate: job.rate(),
            cpu_ns: cpu.as_secs_f64() * 1e9 / count(&job.latencies),
            latencies: job.latencies,
        })
    }

    /// Rewrites all disks, and reads at random with every byte compared.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.fill()?;
        for queues in self.queues.chunks_mut(self.queues_each) {
            let mut check = Scattered {
                job: Check {
                    extent: self.extent,
                    rng: self.rng.fork(),
                    left: CHECKED,
                },
                spots: &self.spots,
                commands: self.commands,
                rng: self.rng.fork(),
            };
            drive(queues, &mut check)?;
        }
        Ok(())
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        for queues in self.queues.chunks_mut(self.queues_each) {
            let mut fill = Fill {
                extent: self.extent,
                begun: 0,
            };
            drive(queues, &mut fill)?;
        }
        Ok(())
    }

    fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.servers
            .iter()
            .map(|server| cpu_time(server.pid()))
            .sum()
    }
}

/// A queue pair with commands, whose data lie in the controller's memory or, in scattered pages, in one
/// of them each.
fn load_queue(
    controller: &mut Controller,
    setup: &Setup,
    pages: Option<&ScatteredPages>,
) -> anyhow::Result<LoadedQueue> {
    let pair = controller.create_queues(entries(setup.depth))?;
    let slots = (0..setup.depth).map(|cid| {
        if let Some(pieces) = pages {
            return pieces.slot(cid, BLOCK_BYTES);
        }
        let offset = controller.pages.take(setup.bytes)?;
        let pages: Vec<u64> = (offset..offset + setup.bytes)
            .step_by(PAGE)
            .map(Controller::address)
            .collect();
        let buffer = Buffer {
            memory: controller.memory.clone(),
            offset,
            bytes: setup.bytes,
        };
        let prps = controller.prps(&pages)?;
        Ok(Slot::new(cid, BLOCK_BYTES, buffer, prps))
    });
    let slots = slots.collect::<anyhow::Result<_>>()?;
    Ok(LoadedQueue { pair, slots })
}
