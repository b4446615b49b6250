//! A turn of the worker: what it works on while it holds the lock of the objects.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use peerbar_dma::{BusMastering, MemoryFile};
use peerbar_pci::Interrupts;

use super::remote::Sent;
use super::staging::Staging;
use super::statistics::Statistics;
use super::transfers::Transfers;
use super::wire::{Mailbox, Token, Wire};
use crate::objects::{Gid, Objects};

/// What the worker has besides the objects.
pub(super) struct WorkerState {
    pub(super) gid: Gid,
    pub(super) transfers: Transfers,
    pub(super) interrupts: Arc<dyn Interrupts>,
    /// The memory of BAR2, in which the send queues are.
    pub(super) bar_memory: Arc<MemoryFile>,
    /// Takes work requests of a queue pair out of their order, if there is one.
    pub(super) order: Option<fastrand::Rng>,
    pub(super) statistics: Statistics,
    /// The way to other adapters, once there is one.
    pub(super) wire: Arc<OnceLock<Arc<dyn Wire>>>,
    /// What has arrived from there.
    pub(super) mailbox: Arc<Mailbox>,
    /// The staging buffers that it shares with other adapters.
    pub(super) staging: Staging,
    /// Bytes that were copied from or to slots in this turn.
    pub(super) staged: u64,
    /// Requests to other adapters that are not answered.
    pub(super) sent: HashMap<Token, Sent>,
    /// How many jobs and requests there have been.
    pub(super) ids: u64,
    /// Numbers of the queue pairs that may have something to do, each once.
    pub(super) ready: VecDeque<u16>,
    /// Bus mastering when the present turn began. Without it the adapter issues no request (PCIe Base 6.0, 7.5.1.1.3).
    pub(super) bus: BusMastering,
}

impl WorkerState {
    /// Whether completions and events are kept until bus mastering is on: it is off, or has changed in the present turn. What follows an
    /// entry that is kept is kept as well.
    pub(super) fn keeps_entries(&self) -> bool {
        let requester = self.transfers.session.requester();
        !self.bus.is_on() || self.bus.has_changed(requester)
    }

    /// A number that was not there before.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids = self.ids.wrapping_add(1);
        self.ids
    }

    /// A queue pair may have something to do, before all others.
    pub(super) fn make_ready_first(&mut self, pair: u16) {
        self.ready.retain(|ready| *ready != pair);
        self.ready.push_front(pair);
    }

    /// A queue pair may have something to do.
    pub(super) fn make_ready(&mut self, pair: u16) {
        if !self.ready.contains(&pair) {
            self.ready.push_back(pair);
        }
    }
}

/// A turn.
pub(super) struct Turn<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) state: &'a mut WorkerState,
    pub(super) now: Instant,
}
