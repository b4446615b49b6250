//! A server with one disk, our driver on it, and queues that are ready.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use hdrhistogram::Histogram;
use peerbar_lab::exit::Failure;
use tempfile::TempDir;

use crate::controller::Controller;
use crate::cpu_time::cpu_time;
use crate::drive::drive;
use crate::jobs::{Check, Extent, Fill, Timed, count};
use crate::loaded_queue::{Buffer, Direction, LoadedQueue, Slot};
use crate::memory::PAGE;
use crate::server::{BLOCK_BYTES, Server, ServerCommand};

/// Bytes of the disk: more than the caches of most processors.
pub(crate) const DISK_BYTES: u64 = 128 << 20;
/// Reads of a pass that compares data.
const CHECKED: u64 = 4096;

/// The setup of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The backend of the namespace: `ram`, `null`, or `file`, an image in the machine's page
    /// cache.
    pub(crate) backend: &'static str,
    pub(crate) queues: u16,
    /// Commands outstanding on each queue.
    pub(crate) depth: u16,
    /// Bytes of a transfer.
    pub(crate) bytes: usize,
}

impl Setup {
    /// Starts a server, with its image in `folder`.
    fn server(&self, command: &ServerCommand, folder: &Path) -> Result<Server, Failure> {
        let mut namespace = OsString::from(format!("{}=", self.backend));
        if self.backend == "file" {
            let path = folder.join("disk.img");
            File::create(&path)
                .and_then(|image| image.set_len(DISK_BYTES))
                .context("cannot make an image")?;
            namespace.push(path);
        } else {
            namespace.push(DISK_BYTES.to_string());
        }
        command.controller(namespace)
    }

    fn extent(&self) -> Extent {
        let bytes = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        Extent {
            bytes,
            transfers: DISK_BYTES / bytes,
        }
    }

    /// Returns the bytes of queues, shadow doorbells, data and PRP lists.
    fn memory_bytes(&self) -> usize {
        let commands = usize::from(self.queues) * usize::from(self.depth);
        let queue = 128 * usize::from(entries(self.depth)) + 2 * PAGE;
        commands * (self.bytes + PAGE) + usize::from(self.queues) * queue + 16 * PAGE
    }
}

/// Returns the number of entries of queues for `depth` commands.
fn entries(depth: u16) -> u16 {
    (depth + 1).next_power_of_two().max(64)
}

/// The result of a round of transfers.
pub(crate) struct Round {
    /// Transfers a second.
    pub(crate) rate: f64,
    /// In nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Processor time of the server for each transfer, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

/// A server with its driver.
pub(crate) struct Session {
    server: Server,
    /// The folder of its image.
    _folder: TempDir,
    controller: Controller,
    queues: Vec<LoadedQueue>,
    extent: Extent,
    rng: Rng,
}

impl Session {
    /// Starts it all and fills the disk.
    pub(crate) fn start(command: &ServerCommand, setup: &Setup) -> Result<Self, Failure> {
        let folder = TempDir::new().context("cannot create a folder for images")?;
        let server = setup.server(command, folder.path())?;
        let mut controller = Controller::bring_up(&server.socket(), setup.memory_bytes())?;
        let queues = (0..setup.queues).map(|_| load_queue(&mut controller, setup));
        let queues = queues.collect::<anyhow::Result<_>>()?;
        let mut session = Self {
            server,
            _folder: folder,
            controller,
            queues,
            extent: setup.extent(),
            rng: Rng::with_seed(1),
        };
        session.fill()?;
        Ok(session)
    }

    /// Returns, in words, how doorbells are written.
    pub(crate) fn doorbells(&self) -> &'static str {
        self.controller.doorbells()
    }

    /// Transfers at random addresses for `time`.
    pub(crate) fn round(&mut self, direction: Direction, time: Duration) -> anyhow::Result<Round> {
        let before = cpu_time(self.server.pid())?;
        let mut job = Timed::new(direction, self.extent, self.rng.fork(), time);
        drive(&mut self.queues, &mut job)?;
        let cpu = cpu_time(self.server.pid())?.saturating_sub(before);
        Ok(Round {
            rate: job.rate(),
            cpu_ns: cpu.as_secs_f64() * 1e9 / count(&job.latencies),
            latencies: job.latencies,
        })
    }

    /// Writes the disk anew, reads at random addresses and compares every byte.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.fill()?;
        let mut check = Check {
            extent: self.extent,
            rng: self.rng.fork(),
            left: CHECKED,
        };
        drive(&mut self.queues, &mut check)
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut fill = Fill {
            extent: self.extent,
            begun: 0,
        };
        drive(&mut self.queues, &mut fill)
    }
}

/// Makes a queue pair with commands, whose data is in the controller's memory.
fn load_queue(controller: &mut Controller, setup: &Setup) -> anyhow::Result<LoadedQueue> {
    let pair = controller.create_queues(entries(setup.depth))?;
    let slots = (0..setup.depth).map(|cid| {
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
