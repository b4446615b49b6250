//! A server's controller, enabled by our driver over its socket.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use peerbar_nvme_driver::{QueueMemory, prps};
use peerbar_nvme_spec::registers::offset;
use vfio_user::Client;

use crate::loaded_queue::Queue;
use crate::memory::{BusMemory, PAGE, Pages, SharedMemory};
use crate::vfio_user::{VfioUser, take_messages, turn_on};

/// Bus address of the start of our memory.
const BASE: u64 = 0x1000_0000;
const ADMIN_ENTRIES: u16 = 16;

/// A controller that is ready.
pub(crate) struct Controller {
    /// The memory that it reaches at [`Self::address`].
    pub(crate) memory: Arc<SharedMemory>,
    /// The free pages of the memory.
    pub(crate) pages: Pages,
    driver: peerbar_nvme_driver::Controller<VfioUser, BusMemory>,
    /// The eventfd of the device's first message. Nothing waits for it.
    _interrupt: OwnedFd,
    queues: u16,
}

impl Controller {
    /// Enables the controller at `socket`, with `bytes` bytes of shared memory.
    pub(crate) fn bring_up(socket: &Path, bytes: usize) -> anyhow::Result<Self> {
        let mut client = Client::new(socket).context("cannot connect to a controller")?;
        let (memory, file) = SharedMemory::create(bytes)?;
        let memory = Arc::new(memory);
        client.dma_map(0, BASE, u64_of(bytes), file.as_raw_fd())?;
        turn_on(&mut client)?;
        let interrupt = take_messages(&mut client)?;
        let registers = VfioUser::new(client, offset::DOORBELLS)?;
        let pages = Pages::new(bytes);
        let shared = BusMemory {
            memory: memory.clone(),
            address: BASE,
        };
        let admin = queue_memory(&pages, ADMIN_ENTRIES)?;
        let mut driver = peerbar_nvme_driver::Controller::enable(registers, shared, admin)?;
        let shadows = [pages.take(PAGE)?, pages.take(PAGE)?];
        driver.use_shadow_doorbells(shadows.map(Self::address))?;
        driver.request_all_queues()?;
        Ok(Self {
            memory,
            pages,
            driver,
            _interrupt: interrupt,
            queues: 0,
        })
    }

    /// Returns the bus address of our memory at `offset`.
    pub(crate) fn address(offset: usize) -> u64 {
        BASE + u64_of(offset)
    }

    /// Returns the PRP entries of a command with its data in `pages`, up to 2 MiB of them.
    pub(crate) fn prps(&self, pages: &[u64]) -> anyhow::Result<[u64; 2]> {
        let list = || self.pages.take(PAGE).map(Self::address);
        prps(pages, self.driver.memory(), list)
    }

    /// Returns, in words, how doorbells are written.
    pub(crate) fn doorbells(&self) -> &'static str {
        let mapped = self.driver.registers().is_mapped();
        match (self.driver.has_shadow_doorbells(), mapped) {
            (true, true) => "shadow, mapped",
            (true, false) => "shadow",
            (false, true) => "mapped",
            (false, false) => "trapped",
        }
    }

    /// Creates a pair of I/O queues of `entries` entries that raise no interrupts.
    pub(crate) fn create_queues(&mut self, entries: u16) -> anyhow::Result<Queue> {
        self.queues += 1;
        let at = queue_memory(&self.pages, entries)?;
        Ok(self.driver.create_queues(self.queues, at)?)
    }
}

/// Allocates memory for queues of `entries` entries each.
fn queue_memory(pages: &Pages, entries: u16) -> anyhow::Result<QueueMemory> {
    let [submission, completion] = queue_offsets(pages, entries)?.map(Controller::address);
    Ok(QueueMemory {
        submission,
        completion,
        submission_entries: entries,
        completion_entries: entries,
    })
}

/// Allocates the same memory. Returns the offsets of submission queue and completion queue.
pub(crate) fn queue_offsets(pages: &Pages, entries: u16) -> anyhow::Result<[usize; 2]> {
    let entries = usize::from(entries);
    Ok([pages.take(64 * entries)?, pages.take(16 * entries)?])
}

/// Converts an offset. `usize` and `u64` both have 64 bits on the machines that this runs on.
fn u64_of(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
