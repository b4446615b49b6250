//! A turn of the worker, which holds the lock of the objects.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use peerbar_dma::{BusMastering, MemoryFile};
use peerbar_pci::Interrupts;

use super::remote::InFlight;
use super::statistics::Statistics;
use super::transfers::Transfers;
use super::wire::{Mailbox, Token, Wire};
use crate::objects::{Gid, Objects};
use crate::work::staging::Staging;

/// The state of the worker apart from the objects.
pub(super) struct WorkerState {
    pub(super) gid: Gid,
    pub(super) transfers: Transfers,
    pub(super) interrupts: Arc<dyn Interrupts>,
    /// The memory of BAR2, which contains the send queues.
    pub(super) bar_memory: Arc<MemoryFile>,
    /// Takes work requests of a queue pair out of their order, if set.
    pub(super) order: Option<fastrand::Rng>,
    pub(super) statistics: Statistics,
    /// The way to other adapters, once there is one.
    pub(super) wire: Arc<OnceLock<Arc<dyn Wire>>>,
    /// Mail from there.
    pub(super) mailbox: Arc<Mailbox>,
    /// The staging buffers that it shares with other adapters.
    pub(super) staging: Staging,
    /// Bytes that were copied from or to slots in this turn.
    pub(super) staged: u64,
    /// Unanswered requests to other adapters.
    pub(super) sent: HashMap<Token, InFlight>,
    /// Number of jobs and requests so far.
    pub(super) ids: u64,
    /// Bus mastering when the present turn began. Without it the adapter issues no request (PCIe
    /// Base 6.0, 7.5.1.1.3).
    pub(super) bus: BusMastering,
}

impl WorkerState {
    /// Returns `true` if completions and events are kept until bus mastering is on: it is off, or
    /// has changed in the present turn. Entries after a kept one are kept as well.
    pub(super) fn keeps_entries(&self) -> bool {
        let requester = self.transfers.session.requester();
        !self.bus.is_on() || self.bus.has_changed(requester)
    }

    /// Returns a number that has not been used.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids = self.ids.wrapping_add(1);
        self.ids
    }
}

/// A turn.
pub(super) struct Turn<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) state: &'a mut WorkerState,
    pub(super) now: Instant,
}
