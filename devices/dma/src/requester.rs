//! The requester: a function's way to memory.

mod transfer;

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use peerbar_dma_log::{AtsCounts, Direction, Origin};
use peerbar_flight::{self as flight, Event, Recorder};

use crate::clock::{Clock, Monotonic};
use crate::counters::{CounterFile, Counters};
use crate::done::Done;
use crate::error::DmaError;
use crate::gate::{Closed, Gate, Pass};
use crate::link::{Link, METERS};
use crate::link_speed::LinkSpeed;
use crate::map::{Backing, MapError};
use crate::memory::{MemoryError, MemoryPool, Span};
use crate::peers::{PeerId, PeerRouting, PeerWindow, Peers};
use crate::pins::{Ending, Pins, span};
use crate::recording;
use crate::route::{Fabric, Window, WindowId};
use crate::tag::Tag;
use crate::upstream::Upstream;

/// The first and the last address.
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

/// One function's way to memory; shared by all its threads.
///
/// A request takes a read lock for the time of each direct copy and none while the client or a peer is asked, so the thread
/// that changes the map waits at most for a copy of one piece, never for somebody else. A session is inside the gate
/// instead.
pub struct Requester {
    fabric: parking_lot::RwLock<Fabric>,
    gate: Arc<Gate>,
    pool: Mutex<MemoryPool>,
    upstream: RwLock<Option<Arc<dyn Upstream>>>,
    peers: RwLock<Option<Arc<dyn Peers>>>,
    counters: Counters,
    clock: Box<dyn Clock>,
    recorder: OnceLock<Recorder>,
    pins: Pins,
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
            fabric: parking_lot::RwLock::default(),
            gate: Arc::default(),
            pool: Mutex::default(),
            upstream: RwLock::new(None),
            peers: RwLock::new(None),
            counters: Counters::default(),
            clock,
            recorder: OnceLock::new(),
            pins: Pins::default(),
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
        self.share_ats(&self.fabric());
    }

    /// Notes that a command is taken up. `opcode` is what it asks for, as its device numbers that.
    pub fn begin(&self, origin: Origin, opcode: u8) {
        self.note(|| Event::Begin { origin, opcode });
    }

    /// Notes that a command is complete, before its driver is told. `status` is 0 if it succeeded.
    pub fn end(&self, origin: Origin, status: u16) {
        self.note(|| Event::End { origin, status });
    }

    /// When a piece that is recorded begins: now.
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
        *self
            .upstream
            .write()
            .unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Command register, Bus Master Enable. Once off, every request is refused, and none goes on.
    pub fn set_bus_master(&self, on: bool) {
        let mut fabric = self.change();
        if fabric.bus_master != on {
            fabric.bus_master = on;
            self.note(|| Event::BusMaster(on));
        }
        drop(fabric);
        if !on {
            self.pins.wait(EVERYWHERE);
        }
    }

    /// Refuses every request from now on, until [`Requester::resume`]: the start of a reset. None goes on once what this
    /// returns is dropped.
    pub fn halt(&self) -> Ending<'_> {
        let mut fabric = self.change();
        fabric.halted = true;
        self.note(|| Event::Reset(true));
        self.ending(vec![EVERYWHERE])
    }

    /// Ends a [`Requester::halt`], once nothing of the time before is left.
    pub fn resume(&self) {
        let mut fabric = self.change();
        fabric.halted = false;
        self.note(|| Event::Reset(false));
    }

    /// Opens, moves or (with `None`) closes one of the function's own windows. A window that is empty or wraps around
    /// is closed. No request goes on by the window of before once what this returns is dropped.
    pub fn set_window(&self, id: WindowId, window: Option<Window>) -> Ending<'_> {
        let window = window.filter(|w| w.size > 0 && w.address.checked_add(w.size - 1).is_some());
        let span = |window: &Window| span(window.address, window.size);
        let new = window.as_ref().map(span);
        let mut fabric = self.change();
        let old = fabric.windows.get(&id).map(span);
        if old != new {
            self.note(|| recording::window(id, window.as_ref()));
        }
        match window {
            Some(window) => fabric.windows.insert(id, window),
            None => fabric.windows.remove(&id),
        };
        let met = [old, new].into_iter().flatten();
        self.ending(met.filter(|_| old != new).collect())
    }

    /// Says what becomes of requests to peers, and sets the way to what they have behind windows that are no memory.
    pub fn set_switch(&self, routing: PeerRouting, peers: Arc<dyn Peers>) {
        *self.peers.write().unwrap_or_else(PoisonError::into_inner) = Some(peers);
        self.change().peer_routing = routing;
    }

    /// Whether the function asks for translations of addresses and keeps them (PCIe Base 6.0, 10.5.1.3, ATS Control). Once
    /// off, none that it has kept is used.
    pub fn set_ats(&self, on: bool) {
        let mut fabric = self.change();
        fabric.ats = on;
        if !on {
            fabric.atc().clear();
        }
        self.share_ats(&fabric);
    }

    /// What has become of the translations that the function asked for.
    pub fn ats_counts(&self) -> AtsCounts {
        self.fabric().ats_counts()
    }

    /// Shares what has become of the translations.
    fn share_ats(&self, fabric: &Fabric) {
        self.counters.set_ats(&fabric.ats_counts());
    }

    /// Transfers on the function's own link take time from now on.
    pub fn set_link(&self, link: Link) {
        self.change().links.set_own(link);
    }

    /// The function's own link, if transfers on it take time.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.fabric().links.own().cloned()
    }

    /// Transfers to and from a peer take time on its link, too, from now on. `meters` are that link's.
    pub fn set_peer_link(
        &self,
        peer: PeerId,
        speed: LinkSpeed,
        meters: OwnedFd,
    ) -> Result<(), MemoryError> {
        let meters = self.borrow_memory(meters, 0, METERS)?;
        let link = Link::with_meters(speed, meters);
        self.change().links.set_peer(peer, link);
        Ok(())
    }

    /// Replaces all windows of a peer. Once this returns, no copy goes by those of before.
    pub fn set_peer(&self, peer: PeerId, windows: Vec<PeerWindow>) {
        let mut fabric = self.change();
        if let Some(recorder) = self.recorder.get() {
            recording::peer(recorder, peer, &windows);
        }
        let mut met: Vec<_> = windows.iter().map(PeerWindow::span).collect();
        met.extend(fabric.peers.spans(|owner| owner == peer));
        fabric.peers.set(peer, windows);
        drop(fabric);
        drop(self.ending(met));
    }

    /// The switch is gone: no peer can be reached any more, and who addresses one fails.
    pub fn lose_peers(&self) {
        let mut fabric = self.change();
        fabric.peers.lose_all();
        if let Some(recorder) = self.recorder.get() {
            for (peer, windows) in fabric.peers.windows() {
                recording::peer(recorder, *peer, windows);
            }
        }
        let met = fabric.peers.spans(|_| true).collect();
        drop(fabric);
        drop(self.ending(met));
    }

    /// The span of `size` bytes at `offset` of memory that a peer lends. Each file is mapped once, and only if nobody can
    /// shrink it.
    pub fn borrow_memory(&self, fd: OwnedFd, offset: u64, size: u64) -> Result<Span, MemoryError> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.span(fd, offset, size)
    }

    /// Adds a mapping of `size` bytes at `iova`, over memory that the client lent (a descriptor and an offset in it) or,
    /// without, over a device. Memory that cannot be used safely is reached through the client.
    pub fn map(
        &self,
        iova: u64,
        size: u64,
        access: (bool, bool),
        memory: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        let lent = self.recorder.get().and(memory.as_ref());
        let span = lent.map(|(fd, offset)| recording::file_span(fd, *offset));
        let backing = match memory {
            None => Backing::Device,
            Some((fd, offset)) => self.borrow_memory(fd, offset, size).map_or_else(
                |error| {
                    log::debug!(
                        "mapping {iova:#x}+{size:#x} is reached through the client: {error}"
                    );
                    Backing::RemoteRam
                },
                Backing::Ram,
            ),
        };
        let recorded = match (span, &backing) {
            (Some(span), Backing::Ram(_)) => flight::Backing::Ram(span),
            (Some(span), _) => flight::Backing::RemoteRam(span),
            (None, _) => flight::Backing::Device,
        };
        let mut fabric = self.change();
        fabric.map.map(iova, size, access, backing)?;
        self.note(|| recording::map((iova, size), access, recorded));
        Ok(())
    }

    /// Takes the span from `iova` to `last` (inclusive) out of the map. Once this returns, nothing touches it.
    pub fn unmap(&self, iova: u64, last: u64) {
        let mut fabric = self.change();
        fabric.map.unmap(iova, last);
        if fabric.atc().invalidate(iova, last) {
            self.share_ats(&fabric);
        }
        if self.pins.meet((iova, last)) {
            // It is recorded after what is still to come by this mapping.
            drop(fabric);
            self.pins.wait((iova, last));
        }
        self.note(|| Event::Unmap { iova, last });
    }

    /// Forgets every mapping.
    pub fn unmap_all(&self) {
        self.unmap(0, u64::MAX);
    }

    /// Counts and records what came of a piece at `address` that began at `started`, and makes it the outcome of its
    /// request.
    pub(crate) fn account(
        &self,
        tag: Tag,
        (address, started): (u64, u64),
        (direction, len): (Direction, usize),
        done: &Done,
    ) -> Result<(), DmaError> {
        let entry = done.kind(tag, direction);
        match done.outcome {
            Ok(()) => self.counters.succeeded(entry, len as u64),
            Err(_) => self.counters.failed(entry),
        }
        self.record(tag, (address, started), (direction, len), done);
        done.outcome.map_err(|cause| {
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

    /// Records what came of a piece, if there is a recorder.
    pub(crate) fn record(
        &self,
        tag: Tag,
        (address, started): (u64, u64),
        (direction, len): (Direction, usize),
        done: &Done,
    ) {
        if let Some(recorder) = self.recorder.get() {
            let dma = recording::dma(tag, direction, (address, len), done);
            recorder.dma(dma, started);
        }
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// To be made before the lock is let go under which these addresses were taken away, or after.
    fn ending(&self, spans: Vec<(u64, u64)>) -> Ending<'_> {
        Ending {
            pins: &self.pins,
            spans,
        }
    }

    /// What routes depend on, which does not change until the guard is dropped.
    pub(crate) fn fabric(&self) -> RwLockReadGuard<'_, Fabric> {
        self.fabric.read()
    }

    /// A session's way to keep the fabric from changing. Who is inside may look at it, and changes it never.
    pub(crate) fn pass(&self) -> Pass {
        Pass::new(self.gate.clone())
    }

    fn change(&self) -> Change<'_> {
        // In this order: who is inside the gate takes the lock.
        let closed = self.gate.close();
        Change {
            fabric: self.fabric.write(),
            _closed: closed,
        }
    }
}

/// The fabric while nobody else uses it.
struct Change<'a> {
    fabric: RwLockWriteGuard<'a, Fabric>,
    _closed: Closed<'a>,
}

impl Deref for Change<'_> {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        &self.fabric
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }
}

#[cfg(test)]
mod tests;
