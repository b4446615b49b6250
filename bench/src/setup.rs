//! A server, our driver on it, and lanes that are ready to be driven.

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::Error;
use crate::controller::Controller;
use crate::cpu_time::cpu_time;
use crate::drive::drive;
use crate::jobs::{Check, Extent, Fill, Timed, count};
use crate::lane::{Buffer, Direction, Lane, Slot};
use crate::memory::PAGE;
use crate::server::Server;

/// Bytes of a logical block.
const BLOCK_BYTES: u32 = 4096;
/// Reads of a pass that compares data.
const CHECKED: u64 = 4096;

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Setup<'a> {
    /// The server's program.
    pub(crate) program: &'a Path,
    /// More words of its command line.
    pub(crate) options: &'a [String],
    /// Where its namespaces are kept: `ram` or `null`.
    pub(crate) backend: &'static str,
    pub(crate) namespaces: u32,
    /// Size of each in bytes.
    pub(crate) namespace_bytes: u64,
    pub(crate) queues: u16,
    /// Commands outstanding on each queue.
    pub(crate) depth: u16,
    /// Bytes of a transfer.
    pub(crate) bytes: usize,
}

impl Setup<'_> {
    fn words(&self) -> Vec<String> {
        let namespace = format!("{}={}", self.backend, self.namespace_bytes);
        let mut words = vec!["--serial".to_owned(), "bench".to_owned()];
        words.extend(["--block-size".to_owned(), BLOCK_BYTES.to_string()]);
        for _ in 0..self.namespaces {
            words.extend(["--namespace".to_owned(), namespace.clone()]);
        }
        words.extend(self.options.iter().cloned());
        words
    }

    fn extent(&self) -> Extent {
        let bytes = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        Extent {
            namespaces: self.namespaces,
            bytes,
            transfers: self.namespace_bytes / bytes,
        }
    }

    /// Room for queues, shadow doorbells, data and PRP lists.
    fn memory_bytes(&self) -> usize {
        let commands = usize::from(self.queues) * usize::from(self.depth);
        let queue = 128 * usize::from(entries(self.depth)) + 2 * PAGE;
        commands * (self.bytes + PAGE) + usize::from(self.queues) * queue + 16 * PAGE
    }
}

/// Entries of queues for so many commands.
fn entries(depth: u16) -> u16 {
    (depth + 1).next_power_of_two().max(64)
}

/// What one round of transfers came to.
pub(crate) struct Round {
    /// Transfers a second.
    pub(crate) rate: f64,
    /// In nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Time on a processor of the server for each transfer, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

/// A server with a driver.
pub(crate) struct Session {
    server: Server,
    controller: Controller,
    lanes: Vec<Lane>,
    extent: Extent,
    rng: Rng,
}

impl Session {
    /// Starts it all and fills the disks.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, Error> {
        let server = Server::start(setup.program, setup.words())?;
        let mut controller = Controller::bring_up(&server.socket(), setup.memory_bytes())?;
        let lanes = (0..setup.queues)
            .map(|_| lane(&mut controller, setup))
            .collect::<Result<Vec<_>, _>>()?;
        let mut session = Self {
            server,
            controller,
            lanes,
            extent: setup.extent(),
            rng: Rng::with_seed(1),
        };
        session.fill()?;
        Ok(session)
    }

    /// How doorbells are rung.
    pub(crate) fn doorbells(&self) -> &'static str {
        self.controller.doorbells()
    }

    /// Transfers at random places for `time`.
    pub(crate) fn round(&mut self, direction: Direction, time: Duration) -> Result<Round, Error> {
        let before = cpu_time(self.server.pid())?;
        let mut job = Timed::new(direction, self.extent, self.rng.fork(), time);
        drive(&mut self.lanes, &mut job)?;
        let cpu = cpu_time(self.server.pid())?.saturating_sub(before);
        Ok(Round {
            rate: job.rate(),
            cpu_ns: cpu.as_secs_f64() * 1e9 / count(&job.latencies),
            latencies: job.latencies,
        })
    }

    /// Writes all disks anew, and reads at random with every byte compared.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        self.fill()?;
        let mut check = Check {
            extent: self.extent,
            rng: self.rng.fork(),
            left: CHECKED,
        };
        drive(&mut self.lanes, &mut check)
    }

    fn fill(&mut self) -> Result<(), Error> {
        let mut fill = Fill {
            extent: self.extent,
            begun: 0,
        };
        drive(&mut self.lanes, &mut fill)
    }
}

fn lane(controller: &mut Controller, setup: &Setup<'_>) -> Result<Lane, Error> {
    let queue = controller.create_queues(entries(setup.depth))?;
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
    let slots = slots.collect::<Result<_, Error>>()?;
    Ok(Lane { queue, slots })
}
