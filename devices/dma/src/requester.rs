//! The requester: a function's way to memory.

mod drain;
mod injected;
mod register;
mod transfer;

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use log::Level;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use peerbar_dma_log::counter_file::DeviceEvent;
use peerbar_dma_log::{AtsCounts, Direction, Origin};
use peerbar_fault::{Action, AddError, Faults, Fired, Rule};
use peerbar_flight::{
    self as flight, DoorbellEvent, Event, FileSpan, Injection, Recorder, RegisterWrite, WindowId,
};

use crate::address::AddressRange;
use crate::clock::{Clock, Monotonic, nanos};
use crate::counters::{CounterFile, Counters};
use crate::error::DmaError;
use crate::lease::PeerLeases;
use crate::lent_file::LentFile;
use crate::link::{LONGEST_METERS, Link, METERS};
use crate::link_speed::LinkSpeed;
use crate::link_state::LinkState;
use crate::loans::Loans;
use crate::map::{Backing, MapError};
use crate::memory::{Lease, Span};
use crate::memory_error::MemoryError;
use crate::memory_pool::{MemoryPool, PeerPools};
use crate::patience::Bucket;
use crate::peer_changes::PeerChanges;
use crate::peers::{PeerId, PeerRouting, PeerWindow, Peers};
use crate::pins::Pins;
use crate::reader_lock::{BigReaderLock, ReaderSlot, WriteGuard};
use crate::recording;
use crate::route::{OwnWindow, RouteTable};
use crate::segment_result::SegmentResult;
use crate::switch_limits::CLOSING_TIME_OUT;
use crate::tag::Tag;
use crate::upstream::Upstream;

pub use drain::Drain;
pub use register::RegisterValue;

/// One function's way to memory; shared by all its threads.
///
/// A request holds a read lock during each direct copy and none while the client or a peer is asked, so the thread that
/// changes the map waits at most for the copy of one segment. A session holds its slot of the big-reader lock instead.
pub struct Requester {
    routes: RwLock<RouteTable>,
    reader_lock: BigReaderLock,
    client_memory: Mutex<MemoryPool>,
    peer_memory: Mutex<PeerPools>,
    /// Whether a mapping that cannot be used directly has been reported.
    slow_reported: AtomicBool,
    upstream: RwLock<Option<Arc<dyn Upstream>>>,
    peers: RwLock<Option<Arc<dyn Peers>>>,
    counters: Counters,
    clock: Box<dyn Clock>,
    recorder: OnceLock<Recorder>,
    pins: Pins,
    /// How long a change waits for transfers of the kernel; without, for as long as they take.
    patience: OnceLock<Duration>,
    /// How long changes of peers' windows wait for transfers of the kernel.
    peers_patience: Bucket,
    loans: Loans,
    faults: Faults,
    link_state: LinkState,
}

impl Default for Requester {
    fn default() -> Self {
        Self::new()
    }
}

impl Requester {
    /// A requester with no client, no memory and bus mastering off.
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
            upstream: RwLock::new(None),
            peers: RwLock::new(None),
            counters: Counters::default(),
            clock,
            recorder: OnceLock::new(),
            pins: Pins::default(),
            patience: OnceLock::new(),
            peers_patience: Bucket::new(4 * CLOSING_TIME_OUT),
            loans: Loans::default(),
            faults: Faults::default(),
            link_state: LinkState::default(),
        }
    }

    /// Has changes of the routes wait this long at most for transfers of the kernel. Those that go on then are given up, with all that
    /// is mapped of the memory that they use: they fail, and so does every request there until the client maps it again.
    ///
    /// Only for transfers that reach memory by its addresses, as those between a file and the page cache do. A second time is
    /// dropped.
    pub fn limit_transfers(&self, patience: Duration) {
        if self.patience.set(patience).is_err() {
            log::error!("a function has one limit of its transfers");
        }
    }

    /// The record of every DMA so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Has everything recorded from now on, for as long as the function lives. A second recorder is dropped.
    pub fn record_in(&self, recorder: Recorder) {
        if self.recorder.set(recorder).is_err() {
            log::error!("a function has one flight recorder");
        }
    }

    /// Counts in this file from now on, for as long as the function lives, so that other processes see its counters. A
    /// second file is dropped.
    pub fn count_in(&self, file: CounterFile) {
        self.counters.share(file);
        self.share_ats(&self.route_table());
    }

    /// Notes a new value of a queue's doorbell.
    pub fn doorbell(&self, event: impl FnOnce() -> DoorbellEvent) {
        self.note(|| Event::Doorbell(event()));
    }

    /// Notes that a peer has written to the function's registers.
    pub fn register_written(&self, event: impl FnOnce() -> RegisterWrite) {
        self.note(|| Event::RegisterWrite(event()));
    }

    /// The function counts the doorbells of its client from now on. Comes before [`Requester::count_in`].
    pub fn count_doorbells(&self) {
        self.counters.count_doorbells();
    }

    /// Counts that the client has written a doorbell of a queue.
    pub fn doorbell_of_client(&self, queue: u16) {
        self.counters.happened(DeviceEvent::Doorbell(queue));
    }

    /// Notes that the client is about to be signalled, to interrupt the guest by an MSI-X vector, or 0 for the INTx pin.
    pub fn interrupt(&self, vector: u16) {
        self.counters.happened(DeviceEvent::Interrupt);
        self.note(|| Event::Interrupt { vector });
    }

    /// Notes that a command begins. `opcode` is its device's number for what it asks.
    pub fn begin(&self, origin: Origin, opcode: u8) {
        self.note(|| Event::Begin { origin, opcode });
    }

    /// Notes that a command is complete, before its driver is notified. `status` is 0 if it succeeded.
    pub fn end(&self, origin: Origin, status: u16) {
        self.note(|| Event::End { origin, status });
    }

    /// The rules by which faults are injected into what the function does.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Puts a rule in force.
    pub fn add_fault(&self, rule: Rule) -> Result<(), AddError> {
        let text = rule.to_string();
        let fired = self.faults.add(rule)?;
        if let Some(recorder) = self.recorder.get() {
            recorder.rule(&text);
        }
        if let Some(fired) = fired {
            self.note_injected(Origin::Device, &fired);
        }
        Ok(())
    }

    /// Whether the function's link is up. Nothing reaches the function, and it reaches nothing, while a fault keeps it down.
    #[inline]
    pub fn link_is_up(&self) -> bool {
        self.link_state.is_up(|| self.clock.now())
    }

    /// How often the function's link has gone down. Each time the function has to be reset.
    pub fn link_downs(&self) -> u64 {
        self.link_state.downs()
    }

    /// The function's link is up from now on.
    pub fn set_link_up(&self) {
        self.link_state.set_up();
    }

    pub(crate) fn set_link_down(&self, down: Option<Duration>) {
        let until = down.map(|down| self.clock.now().saturating_add(nanos(down)));
        self.link_state.set_down(until);
        self.loans.end(AddressRange::ALL);
    }

    /// Notes that a fault was injected. Removes the device, or takes its link down, if that is the fault.
    pub fn note_injected(&self, origin: Origin, fired: &Fired) {
        log::debug!("{origin}: rule {}, match {}", fired.rule, fired.matches);
        self.counters.happened(DeviceEvent::InjectedFault);
        self.note(|| {
            Event::Injected(Injection {
                rule: fired.rule,
                matches: fired.matches,
                origin,
            })
        });
        let upstream = self.upstream.read().clone();
        match fired.action {
            Action::Remove => {
                if let Some(upstream) = upstream {
                    upstream.disconnect();
                }
            }
            Action::LinkDown(down) | Action::LosePower { down, .. } => {
                self.set_link_down(down);
                if let Some(upstream) = upstream {
                    upstream.wake();
                }
            }
            Action::LinkUp => self.set_link_up(),
            _ => {}
        }
    }

    /// The start time of a segment that is recorded: now.
    pub(crate) fn started(&self) -> u64 {
        self.recorder.get().map_or(0, Recorder::clock)
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = self.recorder.get() {
            recorder.record(event());
        }
    }

    /// Sets or takes away the way to the client. Without one, what needs it fails with [`UpstreamError::Gone`](crate::UpstreamError::Gone).
    pub fn set_upstream(&self, upstream: Option<Arc<dyn Upstream>>) {
        self.note(|| Event::Client(upstream.is_some()));
        *self.upstream.write() = upstream;
    }

    /// Command register, Bus Master Enable. Once off, every request is refused, and none is in progress.
    pub fn set_bus_master(&self, on: bool) {
        let mut routes = self.change();
        if routes.bus_master != on {
            routes.bus_master = on;
            // Nothing is lent while it is off.
            self.loans.end(AddressRange::ALL);
            self.note(|| Event::BusMaster(on));
        }
        drop(routes);
        if !on {
            self.wait_for_transfers(&[AddressRange::ALL]);
        }
    }

    /// Refuses every request from now on, until [`Requester::resume`]: the start of a reset. None is in progress once the
    /// returned [`Drain`] is dropped.
    pub fn halt(&self) -> Drain<'_> {
        let mut routes = self.change();
        routes.halted = true;
        self.loans.end(AddressRange::ALL);
        self.note(|| Event::Reset(true));
        self.drain(vec![AddressRange::ALL])
    }

    /// Ends a [`Requester::halt`], once nothing of the time before is left.
    pub fn resume(&self) {
        let mut routes = self.change();
        routes.halted = false;
        self.note(|| Event::Reset(false));
    }

    /// Opens, moves or (with `None`) closes one of the function's own windows. A window that is empty or wraps around
    /// is closed. No request uses the previous window once the returned [`Drain`] is dropped.
    pub fn set_window(&self, id: WindowId, window: Option<OwnWindow>) -> Drain<'_> {
        let window = window.filter(|w| w.size > 0 && w.address.checked_add(w.size - 1).is_some());
        let new = window.as_ref().map(OwnWindow::addresses);
        let mut routes = self.change();
        let old = routes.windows.get(&id).map(OwnWindow::addresses);
        let met: Vec<_> = [old, new].into_iter().flatten().collect();
        if old != new {
            met.iter().for_each(|range| self.loans.end(*range));
            self.note(|| recording::window(id, window.as_ref()));
        }
        match window {
            Some(window) => routes.windows.insert(id, window),
            None => routes.windows.remove(&id),
        };
        self.drain(if old == new { Vec::new() } else { met })
    }

    /// Whether any of `len` bytes at `address` lies in one of these windows of the function's own.
    pub fn meets_window(&self, ids: &[WindowId], address: u64, len: u64) -> bool {
        let routes = self.route_table();
        let mut windows = ids.iter().filter_map(|id| routes.windows.get(id));
        windows.any(|window| window.meets(address, len))
    }

    /// Sets what the switch does with requests to peers, and the way to those of their windows that are not memory.
    pub fn set_switch(&self, routing: PeerRouting, peers: Arc<dyn Peers>) {
        *self.peers.write() = Some(peers);
        let mut routes = self.change();
        let mut met = Vec::new();
        if routes.peer_routing != routing {
            met.extend(routes.peers.addresses(|_| true));
            met.iter().for_each(|range| self.loans.end(*range));
        }
        routes.peer_routing = routing;
        drop(routes);
        self.loans.wait(&met);
    }

    /// The function is below a switch, or is again, that counts the changes of its peers' windows in `fd` ([`crate::ChangeCount`]).
    /// Each request waits until all changes of before are known ([`Requester::know_changes`]); below a switch that was lost before, once all of
    /// before the attachment are. After 4 s the switch is taken for lost, as by [`Requester::lose_peers`], and left ([`Peers::give_up`]).
    ///
    /// # Errors
    /// Those of mapping it: [`MemoryError::NotInMemory`], [`MemoryError::Os`].
    pub fn set_changes(&self, fd: OwnedFd) -> Result<(), MemoryError> {
        let mut routes = self.change();
        let changes = PeerChanges::new(fd, routes.has_lost_peers)?;
        let former = routes.changes.replace(Arc::new(changes));
        drop(routes);
        if let Some(former) = former {
            former.end();
        }
        Ok(())
    }

    /// All changes up to this count have been set.
    pub fn know_changes(&self, count: u64) {
        let changes = self.route_table().changes.clone();
        if let Some(changes) = changes {
            changes.know(count);
        }
    }

    /// Leaves the switch that counts these changes, unless all up to this count are known now.
    fn leave_switch(&self, changes: &Arc<PeerChanges>, count: u64) {
        let mut routes = self.change();
        let is_present = |present: &Arc<PeerChanges>| Arc::ptr_eq(present, changes);
        if !changes.misses(count) || !routes.changes.as_ref().is_some_and(is_present) {
            return;
        }
        self.forget_peers(&mut routes);
        drop(routes);
        if let Some(peers) = self.peers.read().clone() {
            peers.give_up();
        }
    }

    /// Whether the function asks for translations of addresses and keeps them (PCIe Base 6.0, 10.5.1.3, ATS Control). Once
    /// off, none that it has kept is used.
    pub fn set_ats(&self, on: bool) {
        let mut routes = self.change();
        routes.ats = on;
        if !on {
            routes.atc().clear();
        }
        self.share_ats(&routes);
    }

    /// What the address translation cache has done.
    pub fn ats_counts(&self) -> AtsCounts {
        self.route_table().with_ats_counts(|counts| counts)
    }

    /// Shares what the address translation cache has done.
    fn share_ats(&self, routes: &RouteTable) {
        routes.with_ats_counts(|counts| self.counters.set_ats(&counts));
    }

    /// Transfers on the function's own link take time from now on.
    pub fn set_link(&self, link: Link) {
        self.change().links.set_own(link);
    }

    /// The function's own link, if transfers on it take time.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.route_table().links.own().cloned()
    }

    /// Transfers to and from a peer take time on its link, too, from now on. `meters` are that link's.
    pub fn set_peer_link(
        &self,
        peer: PeerId,
        speed: LinkSpeed,
        meters: OwnedFd,
    ) -> Result<(), MemoryError> {
        let meters = self.borrow_memory(peer, meters, (0, METERS))?;
        let size = meters.file.size();
        if size > LONGEST_METERS {
            return Err(MemoryError::TooLong { size });
        }
        let link = Link::with_meters(speed, meters);
        let routes = &mut *self.change();
        let is_there = |peer| routes.peers.is_there(peer);
        routes.links.set_peer(peer, link, is_there);
        Ok(())
    }

    /// Replaces all windows of a peer. No copy uses those that have changed once the returned [`Drain`] is dropped, which waits for 250 ms at
    /// most, as their owner does.
    pub fn set_peer(&self, peer: PeerId, windows: Vec<PeerWindow>) -> Drain<'_> {
        let mut routes = self.change();
        if let Some(recorder) = self.recorder.get() {
            recording::peer(recorder, peer, &windows);
        }
        let ranges = routes.peers.set(peer, windows);
        ranges.iter().for_each(|range| self.loans.end(*range));
        self.drain_peers(ranges)
    }

    /// The link to the switch is lost: no peer can be reached, and requests to one fail. Their windows are [`PeerId::NOBODY`]'s, until
    /// that has none any more. The switch says again how long their links take. No copy uses them once the returned [`Drain`] is
    /// dropped, as with [`Requester::set_peer`].
    pub fn lose_peers(&self) -> Drain<'_> {
        let ranges = self.forget_peers(&mut self.change());
        self.drain_peers(ranges)
    }

    /// The addresses where the peers were.
    fn forget_peers(&self, routes: &mut RouteTable) -> Vec<AddressRange> {
        if let Some(changes) = routes.changes.take() {
            changes.end();
        }
        routes.has_lost_peers = true;
        let lost: Vec<_> = routes.peers.addresses(|_| true).collect();
        lost.iter().for_each(|range| self.loans.end(*range));
        if let Some(recorder) = self.recorder.get() {
            let peers = routes.peers.windows();
            peers.for_each(|(peer, _)| recording::peer(recorder, *peer, &[]));
        }
        routes.peers.lose_all();
        routes.links.forget_peers();
        if let Some(recorder) = self.recorder.get() {
            for (peer, windows) in routes.peers.windows() {
                recording::peer(recorder, *peer, windows);
            }
        }
        lost
    }

    /// The span of `size` bytes at `offset` of memory that a peer lends.
    pub fn borrow_memory(
        &self,
        peer: PeerId,
        fd: OwnedFd,
        (offset, size): (u64, u64),
    ) -> Result<Span, MemoryError> {
        let file = LentFile::new(fd);
        self.peer_memory.lock().of(peer).span(file, offset, size)
    }

    /// The span of `size` bytes at `offset` of the memory behind a peer's window, for as long as its lease lasts.
    pub fn borrow_window(
        &self,
        peer: PeerId,
        lease: Lease,
        fd: OwnedFd,
        (offset, size): (u64, u64),
    ) -> Result<Span, MemoryError> {
        let file = LentFile::new(fd);
        let mut pools = self.peer_memory.lock();
        pools.of(peer).leased(file, lease, offset, size)
    }

    /// The leases of a peer's windows.
    pub fn borrow_leases(&self, fd: OwnedFd) -> Result<PeerLeases, MemoryError> {
        PeerLeases::new(LentFile::new(fd))
    }

    /// Adds a mapping of `size` bytes at `iova`, over memory that the client lent (a descriptor and an offset in it) or,
    /// without, over a device. Memory that cannot be mapped here is reached through the client. Refused are more than a client
    /// may lend ([`MapError::TooMuch`]), and a file that ends before the mapping does ([`MapError::PastFile`]).
    pub fn map(
        &self,
        iova: u64,
        size: u64,
        access: (bool, bool),
        memory: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        self.injects_into_mapping(iova, size)?;
        let memory = memory.map(|(fd, offset)| (LentFile::new(fd), offset));
        let span = memory.as_ref().map(|(file, offset)| FileSpan {
            device: file.device(),
            inode: file.inode(),
            offset: *offset,
        });
        let backing = match memory {
            None => Backing::Device,
            Some((file, offset)) => self.lent(file, offset, (iova, size))?,
        };
        let recorded = match (span, &backing) {
            (Some(span), Backing::Ram(_)) => flight::Backing::Ram(span),
            (Some(span), _) => flight::Backing::RemoteRam(span),
            (None, _) => flight::Backing::Device,
        };
        let mut routes = self.change();
        routes.map.map(iova, size, access, backing)?;
        self.note(|| recording::map((iova, size), access, recorded));
        Ok(())
    }

    /// What is behind a mapping of `size` bytes at `iova` for which the client lends memory.
    fn lent(
        &self,
        file: LentFile,
        offset: u64,
        (iova, size): (u64, u64),
    ) -> Result<Backing, MapError> {
        let is_regular = file.is_regular();
        match self.client_memory.lock().span(file, offset, size) {
            Ok(span) => Ok(Backing::Ram(span)),
            Err(error @ MemoryError::OutOfRange { .. }) if is_regular => {
                log::warn!(
                    "mapping {iova:#x}+{size:#x} is refused: {error}; \
                     have the client lend one file for all of it, as SPDK's tools do with -g"
                );
                Err(MapError::PastFile { iova, size })
            }
            Err(error @ MemoryError::TooMuch { .. }) => {
                log::warn!("mapping {iova:#x}+{size:#x} is refused: {error}");
                Err(MapError::TooMuch)
            }
            Err(error) => {
                let again = self.slow_reported.swap(true, Ordering::Relaxed);
                let level = if again { Level::Debug } else { Level::Warn };
                log::log!(
                    level,
                    "mapping {iova:#x}+{size:#x} is reached by messages, slowly: {error}"
                );
                Ok(Backing::RemoteRam)
            }
        }
    }

    /// Takes the span from `iova` to `last` (inclusive) out of the map. Once this returns, no DMA touches it.
    pub fn unmap(&self, iova: u64, last: u64) {
        self.take_out(self.change(), iova, last);
    }

    /// Like [`Self::unmap`], for a client: fails, and changes nothing, if more mappings would be left than a client may have.
    pub fn try_unmap(&self, iova: u64, last: u64) -> Result<(), MapError> {
        let routes = self.change();
        routes.map.check_unmap(iova, last)?;
        self.take_out(routes, iova, last);
        Ok(())
    }

    fn take_out(&self, mut routes: Change<'_>, iova: u64, last: u64) {
        routes.map.unmap(iova, last);
        if routes.atc().invalidate(iova, last) {
            self.share_ats(&routes);
        }
        let range = AddressRange { first: iova, last };
        self.loans.end(range);
        if self.pins.meet(range) || self.loans.are_copied(range) {
            // It is recorded after the transfers that still use this mapping.
            drop(routes);
            self.wait_for_transfers(&[range]);
        }
        self.note(|| Event::Unmap { iova, last });
    }

    /// Forgets every mapping.
    pub fn unmap_all(&self) {
        self.unmap(0, u64::MAX);
    }

    /// Counts and records the result of a segment at `address` that began at `started`, and returns it as the outcome of
    /// its request.
    pub(crate) fn account(
        &self,
        tag: Tag,
        (address, started): (u64, u64),
        (direction, len): (Direction, usize),
        result: &SegmentResult,
    ) -> Result<(), DmaError> {
        let entry = result.kind(tag, direction);
        match result.outcome {
            Ok(()) => self.counters.succeeded(entry, len as u64),
            Err(_) => self.counters.failed(entry),
        }
        self.record(tag, (address, started), (direction, len), result);
        result.outcome.map_err(|cause| {
            let error = DmaError {
                origin: tag.origin,
                address,
                len,
                cause,
            };
            log::debug!("{error}: {cause}");
            error
        })
    }

    /// Records the result of a segment, if there is a recorder.
    pub(crate) fn record(
        &self,
        tag: Tag,
        (address, started): (u64, u64),
        (direction, len): (Direction, usize),
        result: &SegmentResult,
    ) {
        if let Some(recorder) = self.recorder.get() {
            let dma = recording::dma(tag, direction, (address, len), result);
            recorder.dma(dma, started);
        }
    }

    pub(crate) fn loans(&self) -> &Loans {
        &self.loans
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// What routes depend on, which does not change until the guard is dropped.
    pub(crate) fn route_table(&self) -> RwLockReadGuard<'_, RouteTable> {
        self.routes.read()
    }

    /// A slot for a session: while it is locked the routes do not change, and its thread must not change them.
    pub(crate) fn reader_slot(&self) -> ReaderSlot {
        self.reader_lock.reader()
    }

    fn change(&self) -> Change<'_> {
        // In this order, as a thread with a locked slot takes the other lock.
        let guard = self.reader_lock.write();
        Change {
            routes: self.routes.write(),
            _guard: guard,
        }
    }
}

/// The routes while no other thread uses them.
struct Change<'a> {
    routes: RwLockWriteGuard<'a, RouteTable>,
    _guard: WriteGuard<'a>,
}

impl Deref for Change<'_> {
    type Target = RouteTable;

    fn deref(&self) -> &RouteTable {
        &self.routes
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut RouteTable {
        &mut self.routes
    }
}

#[cfg(test)]
mod tests;
