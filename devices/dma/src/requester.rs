//! The requester: a function's way to memory.

mod access;
mod changes;
pub(crate) mod drain;
mod injected;
mod mapping;
mod peers;
mod register;
mod transfer;
mod translations;

pub use changes::BusMastering;

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use peerbar_fault::Faults;
use peerbar_flight::{Event, WindowId};
use peerbar_pci::{Iova, Range};

use crate::client::Client;
use crate::clock::{Clock, Monotonic, nanos};
use crate::counters::CounterFile;
use crate::ledger::Ledger;
use crate::link::Link;
use crate::link_state::LinkState;
use crate::memory_pool::{MemoryPool, PeerPools};
use crate::peers::Peers;
use crate::pins::Pins;
use crate::reader_lock::{BigReaderLock, ReaderSlot};
use crate::route::RouteTable;
use crate::switch_limits::CLOSING_TIME_OUT;
use crate::upstream::Upstream;
use crate::wait_budget::WaitBudget;

/// One function's way to memory, shared by all its threads.
///
/// A request holds a read lock during each direct copy, and no lock while it asks the client or a
/// peer, so the thread that changes the map waits at most for the copy of one segment. A session
/// holds its slot of the big-reader lock instead.
pub struct Requester {
    routes: RwLock<RouteTable>,
    reader_lock: BigReaderLock,
    client_memory: Mutex<MemoryPool>,
    peer_memory: Mutex<PeerPools>,
    /// `true` once a mapping that cannot be used directly has been reported.
    slow_reported: AtomicBool,
    client: Client,
    peers: RwLock<Option<Arc<dyn Peers>>>,
    ledger: Ledger,
    clock: Box<dyn Clock>,
    pins: Pins,
    /// Limit of a change's wait for kernel transfers. Without it, a change waits for as long as
    /// they take.
    transfer_timeout: OnceLock<Duration>,
    /// Limit of the waits of changes of peers' windows for kernel transfers.
    peer_wait_budget: WaitBudget,
    faults: Faults,
    link_state: LinkState,
    /// The number of changes of bus mastering, which is off at first.
    bus_mastering: AtomicU32,
    /// Called while a request waits for changes of the peers' windows.
    on_missed_changes: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Requester {
    fn default() -> Self {
        Self::new()
    }
}

impl Requester {
    /// Makes a requester with no client, no memory and bus mastering off.
    pub fn new() -> Self {
        Self::with_clock(Box::new(Monotonic))
    }

    fn with_clock(clock: Box<dyn Clock>) -> Self {
        Self {
            routes: RwLock::default(),
            reader_lock: BigReaderLock::default(),
            client_memory: Mutex::default(),
            peer_memory: Mutex::default(),
            slow_reported: AtomicBool::new(false),
            client: Client::default(),
            peers: RwLock::new(None),
            ledger: Ledger::default(),
            clock,
            pins: Pins::default(),
            transfer_timeout: OnceLock::new(),
            peer_wait_budget: WaitBudget::new(4 * CLOSING_TIME_OUT),
            faults: Faults::default(),
            link_state: LinkState::default(),
            bus_mastering: AtomicU32::new(0),
            on_missed_changes: OnceLock::new(),
        }
    }

    /// Returns the function's counters and flight record.
    #[inline]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Counts in this file from now on, for the life of the function, so that other processes see
    /// its counters. Ignores a second file.
    pub fn count_in(&self, file: CounterFile) {
        self.ledger.counters().share(file);
        self.share_ats(&self.route_table());
    }

    /// Limits the time for which changes of the routes wait for kernel transfers. Transfers that
    /// are still in progress then are given up, with all mappings of the memory that they use: they
    /// fail, and so does every request there until the client maps it again.
    ///
    /// Only for transfers that reach memory by its addresses, such as those between a file and the
    /// page cache. Ignores a second call.
    pub fn limit_transfers(&self, timeout: Duration) {
        if self.transfer_timeout.set(timeout).is_err() {
            log::error!("a function has one limit of its transfers");
        }
    }

    /// Returns `true` if the function's link is up. While a fault keeps it down, nothing reaches
    /// the function and the function reaches nothing.
    #[inline]
    pub fn link_is_up(&self) -> bool {
        self.link_state.is_up(|| self.clock.now())
    }

    /// Returns the number of times that the function's link has gone down. Each time the function
    /// must be reset.
    pub fn link_downs(&self) -> u64 {
        self.link_state.downs()
    }

    /// Brings the function's link up.
    pub fn set_link_up(&self) {
        self.link_state.set_up();
    }

    pub(crate) fn set_link_down(&self, down: Option<Duration>) {
        let until = down.map(|down| self.clock.now().saturating_add(nanos(down)));
        self.link_state.set_down(until);
    }

    /// Sets or removes the way to the client. Without one, requests that need the client fail with
    /// [`UpstreamError::Gone`](crate::UpstreamError::Gone).
    pub fn set_upstream(&self, upstream: Option<Arc<dyn Upstream>>) {
        self.ledger.note(|| Event::Client(upstream.is_some()));
        self.client.set(upstream);
    }

    /// Returns `true` if any of these addresses lies in one of these own windows.
    pub fn meets_window(&self, ids: &[WindowId], range: Range<Iova>) -> bool {
        let routes = self.route_table();
        let mut windows = ids.iter().filter_map(|id| routes.windows.get(id));
        windows.any(|window| window.range.overlaps(&range.on_bus()))
    }

    /// Returns the function's own link, if transfers on it take time.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.route_table().links.own().cloned()
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns the route table, which does not change until the guard is dropped.
    pub(crate) fn route_table(&self) -> RwLockReadGuard<'_, RouteTable> {
        self.routes.read()
    }

    /// Returns `true` if the function may issue requests now.
    fn may_request(&self) -> bool {
        self.route_table().may_request()
    }

    /// Makes a slot for a session. While it is locked the routes do not change, and its thread must
    /// not change them.
    pub(crate) fn reader_slot(&self) -> ReaderSlot {
        self.reader_lock.reader()
    }
}

#[cfg(test)]
mod tests;
