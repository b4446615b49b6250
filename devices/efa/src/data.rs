//! The data path: from a doorbell to a completion.
//!
//! A worker takes work requests out of the send queues, checks each buffer against the memory
//! regions of its queue pair's protection domain, moves the payload by `peerbar-dma`, and posts
//! completions. It works in slices, so that no queue pair and no long transfer delays the others
//! for long.
//!
//! Between two queue pairs of one adapter payload is copied once, from memory region to memory
//! region. Memory that only another process can access is copied through a buffer. Between two
//! adapters RDMA payload is copied twice, through a buffer that they share. Messages, and RDMA
//! payload if the fabric impairs the two adapters, go in packets of the fabric, which are sent
//! again if they are lost, and executed at most once.
//!
//! # Failures
//! - A work request that cannot be executed is completed with its status, and its queue pair
//!   continues: a datagram's failure says nothing about the next one. A failed DMA is never a
//!   success.
//! - A send or receive queue that is malformed or cannot be read, a completion queue that overflows
//!   or cannot be written, and an event counter whose word cannot be written put their queue pairs
//!   in error. Posted requests are flushed.
//! - Without bus mastering everything waits until it is on again: doorbells, packets, completions,
//!   events. A transfer that was in progress when it was turned off fails.
//! - A message without a posted receive is sent again after a while, as often as its queue pair
//!   allows. Others overtake it.
//! - In its receive buffer, the payload of a datagram follows a routing header of 40 bytes.
//! - An RDMA request is refused unless the other side has an address handle of the requester's
//!   adapter.

mod arrivals;
mod completions;
mod event_counters;
mod fast_regions;
mod local;
mod loopback;
mod peers;
mod receive_queue;
mod remote;
mod requester;
mod responder;
mod send_queue;
mod statistics;
mod transfers;
mod turn;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use peerbar_dma::{MemoryFile, Requester};
use peerbar_fabric::{AttachError, Attachment, Link, LinkStatistics};
use peerbar_pci::Interrupts;

pub use statistics::Statistics;

use crate::doorbells::Doorbells;
use crate::memory_bar::Doorbell;
use crate::objects::{Gid, Objects};
use local::Local;
use peers::Peers;
use transfers::Transfers;

use wire::{FabricWire, Mailbox, Wire};
#[cfg(feature = "stepped")]
pub(crate) use worker::NextTurn;
pub(crate) use worker::Worker;

/// The parts that a data path works with.
pub struct Setup {
    /// The adapter's own address.
    pub gid: Gid,
    /// Its way to memory.
    pub requester: Arc<Requester>,
    /// The interrupts of its event queues.
    pub interrupts: Arc<dyn Interrupts>,
    /// The memory of BAR2, of the size of the BAR.
    pub bar_memory: Arc<MemoryFile>,
    /// The seed of an order in which a queue pair's work requests are executed. `None`: in their
    /// own order, as far as possible.
    pub seed: Option<u64>,
}

/// The objects of an adapter and the worker that moves their data. Dropping it ends the worker.
pub struct DataPath {
    objects: Arc<Mutex<Objects>>,
    doorbells: Arc<Doorbells>,
    statistics: Arc<Mutex<Statistics>>,
    mailbox: Arc<Mailbox>,
    wire: Arc<OnceLock<Arc<dyn Wire>>>,
    link: Option<Link>,
    worker: Option<JoinHandle<()>>,
}

impl DataPath {
    /// Starts the worker of an adapter without objects.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let (mut path, worker) = Self::parts(setup)?;
        let thread = std::thread::Builder::new().name("data".into());
        path.worker = Some(thread.spawn(|| worker.run())?);
        Ok(path)
    }

    /// Makes a data path whose worker runs only when its caller calls it.
    pub(crate) fn parts(setup: Setup) -> io::Result<(Self, Worker)> {
        let doorbells = Arc::new(Doorbells::new()?);
        let path = Self {
            objects: Arc::new(Mutex::new(Objects::new(
                doorbells.clone(),
                setup.bar_memory,
            ))),
            doorbells: doorbells.clone(),
            statistics: Arc::default(),
            mailbox: Arc::new(Mailbox::new(doorbells.clone())),
            wire: Arc::default(),
            link: None,
            worker: None,
        };
        let worker = Worker {
            objects: path.objects.clone(),
            doorbells,
            statistics: path.statistics.clone(),
            local: Local {
                gid: setup.gid,
                transfers: Transfers::new(setup.requester),
                interrupts: setup.interrupts,
                statistics: Statistics::default(),
            },
            peers: Peers::new(path.wire.clone(), path.mailbox.clone()),
            order: setup.seed.map(fastrand::Rng::with_seed),
        };
        Ok((path, worker))
    }

    /// Joins the adapter to a fabric, once: its queue pairs reach those of other adapters from now
    /// on.
    ///
    /// # Errors
    /// As for [`Attachment::start`].
    pub fn attach(&mut self, attachment: Attachment) -> Result<(), AttachError> {
        let link = attachment.start(self.mailbox.clone())?;
        let wire = FabricWire {
            sender: link.sender(),
            mailbox: self.mailbox.clone(),
        };
        if self.wire.set(Arc::new(wire)).is_err() {
            log::error!("an adapter has one fabric");
        }
        // The worker must wait for packets from the fabric, too.
        self.doorbells.wake_worker();
        self.link = Some(link);
        Ok(())
    }

    #[cfg(test)]
    fn end(&self) {
        self.doorbells.stop();
    }

    /// Locks the objects, while the worker is idle. Waits for at most one slice of the worker, in
    /// which the worker may ask others for memory, so the thread that answers the guest's accesses
    /// must not call this.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// Takes a doorbell write of a process with this UAR. Waits for nothing.
    pub fn doorbell(&self, uar: u16, doorbell: Doorbell, value: u32) {
        self.doorbells.ring(uar, doorbell, value);
    }

    /// Arms an event queue. Waits for nothing.
    pub fn arm_event_queue(&self, number: u16) {
        self.doorbells.arm_event_queue(number);
    }

    /// Continues deferred work, since bus mastering is on. Waits for nothing.
    pub(crate) fn bus_master_enabled(&self) {
        self.doorbells.wake_worker();
    }

    /// Removes all objects. Once this returns, no earlier work request moves data any more.
    pub fn reset(&self) {
        self.objects().reset();
    }

    /// Returns the adapter's statistics since its start, including all completions that the caller
    /// has seen. Waits as [`DataPath::objects`] does.
    pub fn statistics(&self) -> Statistics {
        // The turn whose completions the caller has seen has ended by then.
        let _turn = self.objects();
        *self.statistics.lock()
    }

    /// Returns the retransmissions of the adapter's link to its fabric, or zeros without a link.
    pub fn link_statistics(&self) -> LinkStatistics {
        let wire = self.wire.get();
        wire.map_or_else(LinkStatistics::default, |wire| wire.statistics())
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        // The link must answer no peer any more.
        self.link = None;
        self.doorbells.stop();
        let worker = self.worker.take();
        if worker.is_some_and(|worker| worker.join().is_err()) {
            log::error!("the worker of the data path has panicked");
        }
    }
}
