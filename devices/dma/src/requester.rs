//! The requester: a function's way to memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use parking_lot::{ArcRwLockReadGuard, RawRwLock, RwLockReadGuard, RwLockWriteGuard};
use peerbar_dma_log::{AtsCounts, Completer, Direction, Origin, Route};
use peerbar_flight::{self as flight, Event, Recorder};

use crate::buffer::Buffer;
use crate::clock::{Clock, Monotonic};
use crate::counters::{Counters, Entry};
use crate::error::{DmaError, DmaFault};
use crate::link::{Lanes, Link, METERS, Transit};
use crate::link_speed::LinkSpeed;
use crate::map::{Backing, MapError};
use crate::memory::{MemoryError, MemoryPool, Span};
use crate::pages::{PageError, PageTable};
use crate::peers::{PeerError, PeerId, PeerRouting, PeerWindow, Peers};
use crate::pins::{Ending, Pins, span};
use crate::recording;
use crate::route::{Fabric, Target, Window, WindowId};
use crate::tag::Tag;
use crate::upstream::{Ask, Upstream, UpstreamError};

/// How much is asked of the client first at an address that nothing is known of. The guest's virtio-iommu logs one fault
/// for every 4 bytes of a refused request, so a fault is shown with as few as possible.
const PROBE: usize = 4;

/// How long is waited for a link before bus mastering is looked at again, in nanoseconds.
const NAP: u64 = 10_000_000;

/// The first and the last address.
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

/// What came of a piece of a request.
pub(crate) struct Done {
    pub(crate) route: Route,
    /// Who owns the memory that it met, if it met any.
    pub(crate) completer: Completer,
    pub(crate) outcome: Result<(), DmaFault>,
}

impl Done {
    /// What it was and which way it went.
    pub(crate) fn entry(&self, tag: Tag, direction: Direction) -> Entry {
        Entry {
            purpose: tag.purpose,
            route: self.route,
            completer: self.met(),
            direction,
        }
    }

    /// Who owns the memory that was met: nobody if it failed.
    pub(crate) fn met(&self) -> Completer {
        match self.outcome {
            Ok(()) => self.completer,
            Err(_) => Completer::Nobody,
        }
    }
}

/// A request that is being carried out.
struct Transfer<'a> {
    tag: Tag,
    /// What is on links that take time.
    transit: Option<Transit>,
    /// Pieces that the client is to be asked for, all together, and what is to be noted of each.
    asks: Vec<Ask<'a>>,
    notes: Vec<Note>,
}

/// What is known of a piece before the client has been asked for it.
struct Note {
    completer: Completer,
    started: u64,
    lanes: Option<Lanes>,
}

/// One function's way to memory; shared by all its threads.
///
/// A request takes a read lock for the time of each direct copy and none while the client or a peer is asked, so the thread
/// that changes the map waits at most for a copy of one piece, never for somebody else.
pub struct Requester {
    fabric: Arc<parking_lot::RwLock<Fabric>>,
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
            fabric: Arc::default(),
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

    /// Sets or takes away the way to the client. Without one, what needs it fails with [`UpstreamError::Gone`].
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
    }

    /// What has become of the translations that the function asked for.
    pub fn ats_counts(&self) -> AtsCounts {
        let fabric = self.fabric();
        let atc = fabric.atc.lock().unwrap_or_else(PoisonError::into_inner);
        atc.counts(fabric.ats)
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
        fabric.atc().invalidate(iova, last);
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

    /// Reads `data.len()` bytes at `address`.
    pub fn read(&self, tag: impl Into<Tag>, address: u64, data: &mut [u8]) -> Result<(), DmaError> {
        self.gather(tag, [(address, data.len())], data)
    }

    /// Reads from several places, each an address and a length, which together are as long as `data`: one request.
    pub fn gather(
        &self,
        tag: impl Into<Tag>,
        places: impl IntoIterator<Item = (u64, usize)>,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        self.transfer(tag.into(), places, Buffer::Read(data))
    }

    /// Writes `data` at `address`.
    pub fn write(&self, tag: impl Into<Tag>, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.scatter(tag, [(address, data.len())], data)
    }

    /// Writes to several places, each an address and a length, which together are as long as `data`: one request.
    pub fn scatter(
        &self,
        tag: impl Into<Tag>,
        places: impl IntoIterator<Item = (u64, usize)>,
        data: &[u8],
    ) -> Result<(), DmaError> {
        self.transfer(tag.into(), places, Buffer::Write(data))
    }

    /// Moves all the data, then waits until it can have arrived.
    fn transfer<'a>(
        &self,
        tag: Tag,
        places: impl IntoIterator<Item = (u64, usize)>,
        mut buffer: Buffer<'a>,
    ) -> Result<(), DmaError> {
        let mut transfer = Transfer {
            tag,
            transit: None,
            asks: Vec::new(),
            notes: Vec::new(),
        };
        let mut places = places.into_iter();
        let moved = places
            .try_for_each(|(address, len)| self.range(&mut transfer, address, buffer.take(len)));
        // What the client is asked for comes before a piece that has failed.
        self.ask_together(&mut transfer)?;
        moved?;
        match transfer.transit {
            Some(transit) => self.arrive(tag, transit),
            None => Ok(()),
        }
    }

    fn range<'a>(
        &self,
        transfer: &mut Transfer<'a>,
        address: u64,
        mut buffer: Buffer<'a>,
    ) -> Result<(), DmaError> {
        let len = buffer.len();
        if len as u64 > 1 && address.checked_add(len as u64 - 1).is_none() {
            self.show(address);
            return self.account(
                transfer.tag,
                (address, 0),
                buffer.extent(),
                &refused(DmaFault::Wraps),
            );
        }
        let mut at = address;
        while !buffer.is_empty() {
            let done = self.piece(transfer, at, &mut buffer)?;
            at = at.wrapping_add(done as u64);
        }
        Ok(())
    }

    /// Does the first piece of a request, takes it off the buffer, and records it; or notes that the client is to be asked.
    /// How long it was.
    fn piece<'a>(
        &self,
        transfer: &mut Transfer<'a>,
        address: u64,
        buffer: &mut Buffer<'a>,
    ) -> Result<usize, DmaError> {
        let started = self.started();
        let fabric = self.fabric();
        let piece = fabric.route(address, buffer.len(), buffer.direction());
        let mut part = buffer.take(piece.len);
        let (direction, len) = part.extent();
        let lanes = fabric.lanes(&piece.target, direction);
        let mut put_off = |completer, part| {
            transfer.asks.push(Ask::new(address, part));
            transfer.notes.push(Note {
                completer,
                started,
                lanes: lanes.clone(),
            });
            Ok(len)
        };
        let part = &mut part;
        let done = match piece.target {
            Target::RemoteRam => return put_off(Completer::GuestRam, part.take(len)),
            // Whatever answers at an address that is no memory of the guest is a device.
            Target::Device => return put_off(Completer::PeerBar, part.take(len)),
            Target::NotMaster => refused(DmaFault::NotMaster),
            Target::OwnRegisters => refused(DmaFault::OwnRegisters),
            Target::Own(span) => own(copy(&span, part)),
            Target::OwnPage(table, offset) => copy_page(&table, offset, part),
            Target::Peer(_, span) => to_peer(copy(&span, part)),
            Target::PeerGone => to_peer(Err(DmaFault::Peer(PeerError::Gone))),
            Target::PeerRefused => refused(DmaFault::Peer(PeerError::Unsupported)),
            Target::PeerDropped => dropped(part),
            Target::Ram(span) => in_ram(copy(&span, part)),
            Target::PeerByMessage(peer) => {
                drop(fabric);
                to_peer(self.ask_peer(peer, address, part).map_err(DmaFault::Peer))
            }
            Target::Forbidden => {
                drop(fabric);
                upstream(Completer::Nobody, self.deny(address, part))
            }
            Target::Unmapped => {
                drop(fabric);
                upstream(Completer::Unknown, self.explore(address, part))
            }
        };
        self.account(transfer.tag, (address, started), (direction, len), &done)?;
        self.depart(transfer, lanes, len)?;
        Ok(len)
    }

    /// Asks the client for all pieces that wait for that, and records what came of them. The failure is the first one's.
    fn ask_together(&self, transfer: &mut Transfer<'_>) -> Result<(), DmaError> {
        let (mut asks, notes) = (
            std::mem::take(&mut transfer.asks),
            std::mem::take(&mut transfer.notes),
        );
        if asks.is_empty() {
            return Ok(());
        }
        self.carry_out(&mut asks);
        let mut all: Result<(), DmaError> = Ok(());
        for (ask, note) in asks.iter().zip(notes) {
            let outcome = match (ask.outcome, &all) {
                (Some(Err(UpstreamError::Stopped)), Err(first)) => Err(first.cause),
                (None, Err(_)) => break,
                (outcome, _) => settled(outcome),
            };
            let done = upstream(note.completer, outcome);
            let extent = ask.data.extent();
            let one = self.account(transfer.tag, (ask.address, note.started), extent, &done);
            let (_, len) = extent;
            all = all.and(one.and_then(|()| self.depart(transfer, note.lanes, len)));
        }
        all
    }

    /// Adds a piece to what is on its way, if it takes time. If that goes by other links, it arrives first.
    fn depart(
        &self,
        transfer: &mut Transfer<'_>,
        lanes: Option<Lanes>,
        bytes: usize,
    ) -> Result<(), DmaError> {
        let Some(lanes) = lanes else {
            return Ok(());
        };
        let (bytes, transit) = (bytes as u64, &mut transfer.transit);
        if transit.as_mut().is_some_and(|t| t.join(&lanes, bytes)) {
            return Ok(());
        }
        if let Some(before) = transit.take() {
            self.arrive(transfer.tag, before)?;
        }
        transfer.transit = Some(Transit::new(lanes, bytes, self.clock.now()));
        Ok(())
    }

    /// Waits until what is on its way has arrived, or the function may issue requests no more.
    fn arrive(&self, tag: Tag, mut transit: Transit) -> Result<(), DmaError> {
        while let Some(left) = transit.next(self.clock.now()) {
            if !self.fabric().may_request() {
                return Err(DmaError {
                    origin: tag.origin,
                    address: 0,
                    len: 0,
                    cause: DmaFault::NotMaster,
                });
            }
            self.clock.sleep(left.min(NAP));
        }
        Ok(())
    }

    /// Has a peer do it.
    fn ask_peer(&self, peer: PeerId, address: u64, part: &mut Buffer<'_>) -> Result<(), PeerError> {
        let peers = self
            .peers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let peers = peers.ok_or(PeerError::Gone)?;
        match part {
            Buffer::Read(data) => peers.read(peer, address, data),
            Buffer::Write(data) => peers.write(peer, address, data),
        }
    }

    /// Has the client do all of `asks`, as long as the function may issue requests.
    fn carry_out(&self, asks: &mut [Ask<'_>]) {
        let upstream = self
            .upstream
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match (upstream, asks) {
            (Some(upstream), asks) => upstream.carry_out(asks, &|| self.fabric().may_request()),
            (None, [first, ..]) => first.outcome = Some(Err(UpstreamError::Gone)),
            (None, []) => {}
        }
    }

    /// Has the client do one thing.
    fn ask(&self, address: u64, data: Buffer<'_>) -> Result<(), DmaFault> {
        let mut ask = [Ask::new(address, data)];
        self.carry_out(&mut ask);
        let [ask] = ask;
        settled(ask.outcome)
    }

    /// Has the client do it where nothing is known of the address: a few bytes first, and the rest if that went well.
    fn explore(&self, address: u64, part: &mut Buffer<'_>) -> Result<(), DmaFault> {
        let mut rest = part.reborrow();
        let few = rest.take(PROBE);
        let behind = address.wrapping_add(few.len() as u64);
        self.ask(address, few)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.ask(behind, rest)
    }

    /// Has the client see that the function has gone astray at `address`, if it is one that nothing is known of, so that
    /// the guest's IOMMU driver logs it. Whatever was to be done there, a few bytes are read, since that changes nothing.
    fn show(&self, address: u64) {
        let mut probe = [0; PROBE];
        let room = usize::try_from(u64::MAX - address).map_or(PROBE, |rest| PROBE.min(rest + 1));
        let probe = Buffer::Read(&mut probe).take(room);
        let target = self.fabric().route(address, room, probe.direction()).target;
        if let Target::Unmapped = target
            && let Ok(()) = self.ask(address, probe)
        {
            log::debug!("{address:#x}: the client knows what is there, this function does not");
        }
    }

    /// Asks the client for a few bytes of what its mapping does not permit, for its IOMMU to report. Fails in any case.
    fn deny(&self, address: u64, part: &mut Buffer<'_>) -> Result<(), DmaFault> {
        self.ask(address, part.reborrow().take(PROBE))?;
        Err(DmaFault::Forbidden)
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
        let entry = done.entry(tag, direction);
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

    fn fabric(&self) -> RwLockReadGuard<'_, Fabric> {
        self.fabric.read()
    }

    /// What routes depend on, which does not change until the guard is dropped. Who has one asks for no other.
    pub(crate) fn hold(&self) -> ArcRwLockReadGuard<RawRwLock, Fabric> {
        self.fabric.read_arc()
    }

    fn change(&self) -> RwLockWriteGuard<'_, Fabric> {
        let mut fabric = self.fabric.write();
        fabric.generation = fabric.generation.wrapping_add(1);
        fabric
    }
}

/// What has become of something that the client was asked for. What was stopped for no failure was stopped by the function
/// itself, and what was not asked for is nothing that anybody may take for done.
fn settled(outcome: Option<Result<(), UpstreamError>>) -> Result<(), DmaFault> {
    match outcome {
        None | Some(Err(UpstreamError::Stopped)) => Err(DmaFault::NotMaster),
        Some(outcome) => outcome.map_err(DmaFault::Upstream),
    }
}

/// Copies between memory and a buffer.
fn copy(span: &Span, part: &mut Buffer<'_>) -> Result<(), DmaFault> {
    let done = match part {
        Buffer::Read(data) => span.file.read(span.offset, data),
        Buffer::Write(data) => span.file.write(span.offset, data),
    };
    done.map_err(|_| DmaFault::NoMemory)
}

/// Copies between a page of a window and a buffer.
fn copy_page(table: &PageTable, offset: u64, part: &mut Buffer<'_>) -> Done {
    let copied = match part {
        Buffer::Read(data) => table.read(offset, data),
        Buffer::Write(data) => table.write(offset, data),
    };
    let outcome = match copied {
        Err(PageError::Missing { .. }) => return refused(DmaFault::NoPage),
        Err(_) => Err(DmaFault::NoMemory),
        Ok(()) => Ok(()),
    };
    own(outcome)
}

fn refused(fault: DmaFault) -> Done {
    Done {
        route: Route::Refused,
        completer: Completer::Nobody,
        outcome: Err(fault),
    }
}

fn own(outcome: Result<(), DmaFault>) -> Done {
    Done {
        route: Route::OwnBar,
        completer: Completer::OwnMemory,
        outcome,
    }
}

fn to_peer(outcome: Result<(), DmaFault>) -> Done {
    Done {
        route: Route::Peer,
        completer: Completer::PeerBar,
        outcome,
    }
}

fn in_ram(outcome: Result<(), DmaFault>) -> Done {
    Done {
        route: Route::GuestRam,
        completer: Completer::GuestRam,
        outcome,
    }
}

fn upstream(completer: Completer, outcome: Result<(), DmaFault>) -> Done {
    Done {
        route: Route::Upstream,
        completer,
        outcome,
    }
}

/// A request that the switch loses: nobody tells the requester of a write, and what it reads it gives up waiting for.
fn dropped(part: &Buffer<'_>) -> Done {
    Done {
        route: Route::Refused,
        completer: Completer::Nobody,
        outcome: match part {
            Buffer::Write(_) => Ok(()),
            Buffer::Read(_) => Err(DmaFault::Peer(PeerError::TimedOut)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use peerbar_dma_log::{Direction, Origin, Purpose};

    use super::*;
    use crate::MemoryFile;
    use crate::counters::Count;
    use crate::link_speed::{Bandwidth, Latency};
    use crate::peers::PeerMemory;
    use crate::route::WindowMemory;

    /// A client with a device's memory at 0x8000..0x9000 that notes what it is asked.
    #[derive(Default)]
    struct Client {
        memory: Mutex<Vec<u8>>,
        asked: Mutex<Vec<(u64, usize)>>,
        calls: AtomicUsize,
    }

    impl Client {
        fn span(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, UpstreamError> {
            self.asked.lock().unwrap().push((address, len));
            let start = address
                .checked_sub(0x8000)
                .map(|start| usize::try_from(start).unwrap());
            start
                .filter(|start| start + len <= 0x1000)
                .map(|start| start..start + len)
                .ok_or(UpstreamError::Refused(19))
        }
    }

    impl Client {
        fn one(&self, ask: &mut Ask<'_>) -> Result<(), UpstreamError> {
            let range = self.span(ask.address, ask.data.len())?;
            let place = &mut self.memory.lock().unwrap()[range];
            match &mut ask.data {
                Buffer::Read(data) => data.copy_from_slice(place),
                Buffer::Write(data) => place.copy_from_slice(data),
            }
            Ok(())
        }
    }

    impl Upstream for Client {
        fn carry_out(&self, asks: &mut [Ask<'_>], may_go_on: &dyn Fn() -> bool) {
            self.calls.fetch_add(1, Relaxed);
            for ask in asks {
                assert!(may_go_on());
                let outcome = self.one(ask);
                ask.outcome = Some(outcome);
                if outcome.is_err() {
                    break;
                }
            }
        }
    }

    /// RAM at 0x1000..0x3000, the client's device at 0x8000..0x9000, own memory at 0x9000..0xa000.
    fn requester() -> (Requester, Arc<Client>) {
        let requester = Requester::new();
        let client = Arc::new(Client {
            memory: Mutex::new(vec![0; 0x1000]),
            ..Client::default()
        });
        requester.set_upstream(Some(client.clone()));
        let ram = MemoryFile::create("ram", 0x2000).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        requester
            .map(0x1000, 0x2000, (true, true), Some((fd, 0)))
            .unwrap();
        requester.map(0x8000, 0x1000, (true, true), None).unwrap();
        let own = Span {
            file: Arc::new(MemoryFile::create("own", 0x1000).unwrap()),
            offset: 0,
        };
        requester.set_window(
            WindowId::Cmb,
            Some(Window {
                address: 0x9000,
                size: 0x1000,
                memory: WindowMemory::Span(own),
            }),
        );
        requester.set_bus_master(true);
        (requester, client)
    }

    fn count(
        requester: &Requester,
        route: Route,
        completer: Completer,
        direction: Direction,
    ) -> Count {
        let wanted = Entry {
            purpose: Purpose::Payload,
            route,
            completer,
            direction,
        };
        let snapshot = requester.counters().snapshot();
        snapshot
            .into_iter()
            .find(|(entry, _)| *entry == wanted)
            .map(|(_, count)| count)
            .unwrap_or_default()
    }

    /// The failure of a piece of a request that the device itself has made.
    fn failed(address: u64, len: usize, cause: DmaFault) -> DmaError {
        DmaError {
            origin: Origin::Device,
            address,
            len,
            cause,
        }
    }

    #[test]
    fn each_route_moves_the_bytes_and_is_counted_with_its_completer() {
        let (requester, _) = requester();
        for (address, route, completer) in [
            (0x1800, Route::GuestRam, Completer::GuestRam),
            (0x8010, Route::Upstream, Completer::PeerBar),
            (0x9020, Route::OwnBar, Completer::OwnMemory),
        ] {
            let mut back = [0; 100];
            requester
                .write(Purpose::Payload, address, &[7; 100])
                .unwrap();
            requester
                .read(Purpose::Payload, address, &mut back)
                .unwrap();
            assert_eq!(back, [7; 100]);
            let once = Count {
                requests: 1,
                bytes: 100,
                failures: 0,
            };
            assert_eq!(count(&requester, route, completer, Direction::Write), once);
            assert_eq!(count(&requester, route, completer, Direction::Read), once);
        }
    }

    #[test]
    fn a_range_over_several_targets_is_split_each_piece_by_its_own_route() {
        let (requester, _) = requester();
        let data: Vec<u8> = (0..0x200u16).map(|i| i.to_le_bytes()[0]).collect();
        requester.write(Purpose::Payload, 0x8f00, &data).unwrap();
        let mut back = vec![0; data.len()];
        requester.read(Purpose::Payload, 0x8f00, &mut back).unwrap();
        assert_eq!(back, data);
        let half = Count {
            requests: 1,
            bytes: 0x100,
            failures: 0,
        };
        assert_eq!(
            count(
                &requester,
                Route::Upstream,
                Completer::PeerBar,
                Direction::Write
            ),
            half
        );
        assert_eq!(
            count(
                &requester,
                Route::OwnBar,
                Completer::OwnMemory,
                Direction::Write
            ),
            half
        );
    }

    #[test]
    fn an_unknown_address_is_asked_of_the_client_with_a_few_bytes_and_fails() {
        let (requester, client) = requester();
        let error = requester
            .write(Purpose::Payload, 0x5000, &[0; 0x1000])
            .unwrap_err();
        assert_eq!(
            error,
            failed(
                0x5000,
                0x1000,
                DmaFault::Upstream(UpstreamError::Refused(19))
            )
        );
        assert_eq!(*client.asked.lock().unwrap(), [(0x5000, PROBE)]);
        let failed = Count {
            requests: 0,
            bytes: 0,
            failures: 1,
        };
        assert_eq!(
            count(
                &requester,
                Route::Upstream,
                Completer::Nobody,
                Direction::Write
            ),
            failed
        );
    }

    #[test]
    fn a_failure_names_the_command_that_asked_for_it() {
        let (requester, _) = requester();
        let tag = Tag::new(Purpose::Payload, Origin::command(3, 17u16));
        let error = requester.read(tag, 0x2ff0, &mut [0; 0x20]).unwrap_err();
        assert_eq!(
            (error.origin, error.address, error.len),
            (tag.origin, 0x3000, 0x10)
        );
        assert_eq!(
            error.to_string(),
            "DMA at 0x3000+0x10 for queue 3, command 17"
        );
    }

    #[test]
    fn what_the_client_does_where_nothing_is_mapped_is_not_known_to_be_a_peer_s() {
        let (requester, _) = requester();
        requester.unmap(0x8000, 0x8fff);
        requester.write(Purpose::Payload, 0x8000, &[1; 64]).unwrap();
        let of = |completer| count(&requester, Route::Upstream, completer, Direction::Write);
        assert_eq!(of(Completer::Unknown).bytes, 64);
        assert_eq!(of(Completer::PeerBar), Count::default());
    }

    #[test]
    fn a_write_that_its_mapping_does_not_permit_fails_even_if_the_client_swallows_it() {
        let (requester, client) = requester();
        requester.unmap(0x8000, 0x8fff);
        requester.map(0x8000, 0x1000, (true, false), None).unwrap();
        let error = requester
            .write(Purpose::Payload, 0x8000, &[1; 64])
            .unwrap_err();
        assert_eq!(error, failed(0x8000, 64, DmaFault::Forbidden));
        assert_eq!(*client.asked.lock().unwrap(), [(0x8000, PROBE)]);
        let of = |completer| count(&requester, Route::Upstream, completer, Direction::Write);
        assert_eq!(of(Completer::Nobody).failures, 1);
        requester
            .read(Purpose::Payload, 0x8000, &mut [0; 8])
            .unwrap();
    }

    /// A client that has the function reset while it answers.
    struct Resetting {
        requester: std::sync::Weak<Requester>,
        asked: Mutex<Vec<(u64, usize)>>,
    }

    impl Upstream for Resetting {
        fn carry_out(&self, asks: &mut [Ask<'_>], may_go_on: &dyn Fn() -> bool) {
            for ask in asks.iter_mut().take_while(|_| may_go_on()) {
                let extent = (ask.address, ask.data.len());
                self.asked.lock().unwrap().push(extent);
                self.requester.upgrade().unwrap().halt();
                ask.outcome = Some(Ok(()));
            }
        }
    }

    #[test]
    fn a_reset_in_the_middle_of_a_transfer_ends_what_is_asked_of_the_client() {
        let (mapped, unmapped) = (0x8000_0000, 0xf000_0000);
        for (places, first) in [
            ([(mapped, 0x1000), (mapped + 0x2000, 0x1000)], 0x1000),
            ([(unmapped, 0x1000), (unmapped + 0x2000, 0x1000)], PROBE),
        ] {
            let requester = Arc::new(Requester::new());
            requester.set_bus_master(true);
            requester.map(mapped, 1 << 20, (true, true), None).unwrap();
            let client = Arc::new(Resetting {
                requester: Arc::downgrade(&requester),
                asked: Mutex::default(),
            });
            requester.set_upstream(Some(client.clone()));
            let outcome = requester.scatter(Purpose::Payload, places, &[0; 0x2000]);
            assert_eq!(
                outcome.map_err(|error| error.cause),
                Err(DmaFault::NotMaster)
            );
            assert_eq!(*client.asked.lock().unwrap(), [(places[0].0, first)]);
        }
    }

    #[test]
    fn all_pieces_of_a_request_are_asked_of_the_client_together() {
        let (requester, client) = requester();
        let places = [(0x8000, 8), (0x1000, 8), (0x8800, 8), (0x8100, 8)];
        let data: Vec<u8> = (0..32).collect();
        requester.scatter(Purpose::Payload, places, &data).unwrap();
        let mut back = [0; 32];
        requester
            .gather(Purpose::Payload, places, &mut back)
            .unwrap();
        assert_eq!(back[..], data[..]);
        assert_eq!(client.calls.load(Relaxed), 2);
        for direction in [Direction::Read, Direction::Write] {
            let upstream = count(&requester, Route::Upstream, Completer::PeerBar, direction);
            assert_eq!((upstream.requests, upstream.bytes), (3, 24));
        }
    }

    #[test]
    fn the_first_failure_of_a_request_is_told_and_what_was_done_is_counted() {
        let (requester, _) = requester();
        requester.map(0xb000, 0x1000, (true, true), None).unwrap();
        let places = [(0x8000, 8), (0xb000, 8), (0x8100, 8)];
        let refused = DmaFault::Upstream(UpstreamError::Refused(19));
        let error = requester.scatter(Purpose::Payload, places, &[0; 24]);
        assert_eq!(error, Err(failed(0xb000, 8, refused)));
        // What comes behind a piece that fails here is not asked for, what comes before it is.
        requester.set_window(
            WindowId::Bar(0),
            Some(Window {
                address: 0xd000,
                size: 0x1000,
                memory: WindowMemory::Registers,
            }),
        );
        let places = [(0x8000, 8), (0xd000, 8), (0xb000, 8)];
        let error = requester.scatter(Purpose::Payload, places, &[0; 24]);
        assert_eq!(error, Err(failed(0xd000, 8, DmaFault::OwnRegisters)));
        let upstream = |completer| {
            let count = count(&requester, Route::Upstream, completer, Direction::Write);
            (count.requests, count.bytes, count.failures)
        };
        assert_eq!(upstream(Completer::PeerBar), (2, 16, 0));
        assert_eq!(upstream(Completer::Nobody).2, 1);
    }

    #[test]
    fn without_a_client_what_needs_it_fails() {
        let (requester, _) = requester();
        requester.set_upstream(None);
        let error = requester
            .read(Purpose::Payload, 0x8000, &mut [0; 8])
            .unwrap_err();
        assert_eq!(error.cause, DmaFault::Upstream(UpstreamError::Gone));
    }

    #[test]
    fn a_window_of_pages_is_followed_and_a_missing_page_is_refused() {
        let (requester, _) = requester();
        let file = Arc::new(MemoryFile::create("vram", 0x4000).unwrap());
        let table = Arc::new(PageTable::new(file.clone(), 2, 0x1000));
        table.set(0, Some(0x3000)).unwrap();
        let window = Window {
            address: 0x1_0000,
            size: 0x2000,
            memory: WindowMemory::Pages(table.clone()),
        };
        requester.set_window(WindowId::Bar(2), Some(window));
        let error = requester
            .write(Purpose::Payload, 0x1_0f00, &[9; 0x200])
            .unwrap_err();
        assert_eq!(error, failed(0x1_1000, 0x100, DmaFault::NoPage));
        assert_eq!(error.address, 0x1_1000);
        let mut back = [0; 0x100];
        file.read(0x3f00, &mut back).unwrap();
        assert_eq!(back, [9; 0x100]);
        let of = |route, completer| count(&requester, route, completer, Direction::Write);
        assert_eq!(of(Route::OwnBar, Completer::OwnMemory).bytes, 0x100);
        assert_eq!(of(Route::Refused, Completer::Nobody).failures, 1);
        table.set(1, Some(0)).unwrap();
        requester
            .write(Purpose::Payload, 0x1_1000, &[9; 8])
            .unwrap();
        table.set(1, None).unwrap();
        assert!(
            requester
                .read(Purpose::Payload, 0x1_1000, &mut [0; 8])
                .is_err()
        );
    }

    #[test]
    fn bus_mastering_off_refuses_and_is_recorded() {
        let (requester, client) = requester();
        requester.set_bus_master(false);
        for address in [0x1000, 0x8000, 0x9000] {
            let error = requester
                .read(Purpose::Payload, address, &mut [0; 8])
                .unwrap_err();
            assert_eq!(error, failed(address, 8, DmaFault::NotMaster));
        }
        assert_eq!(
            count(
                &requester,
                Route::Refused,
                Completer::Nobody,
                Direction::Read
            )
            .failures,
            3
        );
        assert!(client.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn a_halt_lasts_until_it_is_ended_whatever_the_guest_does() {
        let (requester, _) = requester();
        requester.halt();
        requester.set_bus_master(true);
        assert!(requester.write(Purpose::Payload, 0x1000, &[1]).is_err());
        requester.resume();
        assert!(requester.write(Purpose::Payload, 0x1000, &[1]).is_ok());
    }

    #[test]
    fn a_wrapping_range_is_shown_to_the_client_and_refused() {
        let (requester, client) = requester();
        for address in [u64::MAX, u64::MAX - 0x7ff] {
            let len = 0x1000;
            let error = requester
                .write(Purpose::Payload, address, &[1; 0x1000])
                .unwrap_err();
            assert_eq!(error, failed(address, len, DmaFault::Wraps));
        }
        assert_eq!(
            *client.asked.lock().unwrap(),
            [(u64::MAX, 1), (u64::MAX - 0x7ff, PROBE)]
        );
        let refused = count(
            &requester,
            Route::Refused,
            Completer::Nobody,
            Direction::Write,
        );
        assert_eq!(refused.failures, 2);
    }

    #[test]
    fn an_empty_range_does_nothing() {
        let (requester, client) = requester();
        requester.read(Purpose::Payload, 0x5000, &mut []).unwrap();
        assert!(client.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn memory_that_could_shrink_is_reached_through_the_client_and_counted_as_guest_ram() {
        let (requester, client) = requester();
        requester.unmap(0x8000, 0x8fff);
        let fd = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 0x1000).unwrap();
        requester
            .map(0x8000, 0x1000, (true, true), Some((fd, 0)))
            .unwrap();
        requester.write(Purpose::Payload, 0x8000, &[1; 64]).unwrap();
        assert_eq!(*client.asked.lock().unwrap(), [(0x8000, 64)]);
        assert_eq!(
            count(
                &requester,
                Route::Upstream,
                Completer::GuestRam,
                Direction::Write
            )
            .bytes,
            64
        );
    }

    #[test]
    fn an_unmapped_span_is_gone() {
        let (requester, client) = requester();
        requester.unmap(0, u64::MAX);
        assert!(requester.write(Purpose::Payload, 0x1000, &[1]).is_err());
        assert_eq!(*client.asked.lock().unwrap(), [(0x1000, 1)]);
    }

    /// A peer with registers at 0x2_0000..0x2_1000 that notes what it is told and reads as 7.
    #[derive(Default)]
    struct Registers(Mutex<Vec<(u64, Vec<u8>)>>);

    impl Peers for Registers {
        fn read(&self, peer: PeerId, address: u64, data: &mut [u8]) -> Result<(), PeerError> {
            assert_eq!(peer, PeerId(4));
            data.fill(7);
            if address < 0x2_0800 {
                Ok(())
            } else {
                Err(PeerError::TimedOut)
            }
        }

        fn write(&self, peer: PeerId, address: u64, data: &[u8]) -> Result<(), PeerError> {
            assert_eq!(peer, PeerId(4));
            self.0.lock().unwrap().push((address, data.to_vec()));
            Ok(())
        }
    }

    /// The requester of before, below a switch with peer 3, who has memory at 0x1_0000..0x1_1000, and peer 4.
    fn below_switch(routing: PeerRouting) -> (Requester, Arc<Client>, Arc<Registers>, Span) {
        let (requester, client) = requester();
        let registers = Arc::new(Registers::default());
        requester.set_switch(routing, registers.clone());
        let memory = MemoryFile::create("peer", 0x2000).unwrap();
        let fd = memory.file().try_clone().unwrap().into();
        let span = requester.borrow_memory(fd, 0x1000, 0x1000).unwrap();
        let window = |address, memory| PeerWindow {
            address,
            size: 0x1000,
            claim: address,
            memory,
        };
        let lent = window(0x1_0000, PeerMemory::Span(span.clone()));
        requester.set_peer(PeerId(3), vec![lent]);
        requester.set_peer(PeerId(4), vec![window(0x2_0000, PeerMemory::ByMessage)]);
        (requester, client, registers, span)
    }

    #[test]
    fn a_peer_s_memory_is_met_without_the_client() {
        let (requester, client, _, span) = below_switch(PeerRouting::Route);
        requester
            .write(Purpose::Payload, 0x1_0ff0, &[5; 16])
            .unwrap();
        let mut back = [0; 16];
        span.file.read(0x1ff0, &mut back).unwrap();
        assert_eq!(back, [5; 16]);
        let written = count(
            &requester,
            Route::Peer,
            Completer::PeerBar,
            Direction::Write,
        );
        assert_eq!((written.requests, written.bytes), (1, 16));
        assert!(client.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn a_peer_s_registers_are_met_by_message() {
        let (requester, client, registers, _) = below_switch(PeerRouting::Route);
        requester
            .write(Purpose::Payload, 0x2_0004, &[1, 2, 3, 4])
            .unwrap();
        assert_eq!(*registers.0.lock().unwrap(), [(0x2_0004, vec![1, 2, 3, 4])]);
        let mut data = [0; 4];
        requester
            .read(Purpose::Payload, 0x2_0000, &mut data)
            .unwrap();
        assert_eq!(data, [7; 4]);
        let error = requester
            .read(Purpose::Payload, 0x2_0800, &mut data)
            .unwrap_err();
        let (address, len, source) = (0x2_0800, 4, PeerError::TimedOut);
        assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
        let failed = count(&requester, Route::Peer, Completer::Nobody, Direction::Read);
        assert_eq!(failed.failures, 1);
        assert!(client.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn a_peer_that_gave_up_its_window_is_no_peer_and_one_that_vanished_fails() {
        let (requester, client, ..) = below_switch(PeerRouting::Route);
        requester.set_peer(PeerId(3), Vec::new());
        let error = requester
            .write(Purpose::Payload, 0x1_0000, &[1])
            .unwrap_err();
        assert!(matches!(error.cause, DmaFault::Upstream(_)), "{error}");
        assert_eq!(*client.asked.lock().unwrap(), [(0x1_0000, 1)]);
        requester.lose_peers();
        let error = requester
            .write(Purpose::Payload, 0x2_0000, &[1])
            .unwrap_err();
        let (address, len, source) = (0x2_0000, 1, PeerError::Gone);
        assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
        assert_eq!(client.asked.lock().unwrap().len(), 1);
    }

    #[test]
    fn redirected_requests_to_peers_go_up() {
        let (requester, client, ..) = below_switch(PeerRouting::Redirect);
        for address in [0x1_0000, 0x2_0000] {
            assert!(requester.write(Purpose::Payload, address, &[1]).is_err());
        }
        assert_eq!(
            *client.asked.lock().unwrap(),
            [(0x1_0000, 1), (0x2_0000, 1)]
        );
    }

    #[test]
    fn unsupported_requests_are_refused_and_reported() {
        let (requester, client, registers, _) = below_switch(PeerRouting::UnsupportedRequest);
        for address in [0x1_0000, 0x2_0000] {
            let error = requester
                .write(Purpose::Payload, address, &[1])
                .unwrap_err();
            let (len, source) = (1, PeerError::Unsupported);
            assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
        }
        let refused = count(
            &requester,
            Route::Refused,
            Completer::Nobody,
            Direction::Write,
        );
        assert_eq!(refused.failures, 2);
        assert!(client.asked.lock().unwrap().is_empty());
        assert!(registers.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_dropped_write_is_believed_but_recorded_and_a_dropped_read_times_out() {
        let (requester, client, _, span) = below_switch(PeerRouting::Drop);
        requester
            .write(Purpose::Payload, 0x1_0000, &[1; 8])
            .unwrap();
        let mut data = [0; 8];
        span.file.read(0x1000, &mut data).unwrap();
        assert_eq!(data, [0; 8]);
        let error = requester
            .read(Purpose::Payload, 0x1_0000, &mut data)
            .unwrap_err();
        let (address, len, source) = (0x1_0000, 8, PeerError::TimedOut);
        assert_eq!(error, failed(address, len, DmaFault::Peer(source)));
        let of = |direction| count(&requester, Route::Refused, Completer::Nobody, direction);
        assert_eq!(
            (of(Direction::Write).bytes, of(Direction::Read).failures),
            (8, 1)
        );
        assert!(client.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn bus_mastering_off_comes_before_every_peer() {
        let (requester, ..) = below_switch(PeerRouting::Drop);
        requester.set_bus_master(false);
        let error = requester
            .write(Purpose::Payload, 0x1_0000, &[1])
            .unwrap_err();
        assert!(matches!(error.cause, DmaFault::NotMaster), "{error}");
    }

    /// A clock that stands still but for who waits, and resets the function after that.
    #[derive(Default)]
    struct Time {
        now: Mutex<u64>,
        resets: Mutex<Option<std::sync::Weak<Requester>>>,
    }

    impl Clock for Arc<Time> {
        fn now(&self) -> u64 {
            *self.now.lock().unwrap()
        }

        fn sleep(&self, nanoseconds: u64) {
            *self.now.lock().unwrap() += nanoseconds;
            if let Some(requester) = self.resets.lock().unwrap().take() {
                requester.upgrade().unwrap().halt();
            }
        }
    }

    /// 1 ns for each byte, and the latency in ns.
    fn link(latency: u64) -> Link {
        Link::new(LinkSpeed {
            latency: Latency::of_nanoseconds(latency),
            bandwidth: Bandwidth::of_bytes_per_second(1_000_000_000),
        })
        .unwrap()
    }

    /// RAM in two mappings at 0x1000..0x3000, a peer's memory at 0x1_0000, own memory at 0x2_0000.
    fn with_links() -> (Arc<Requester>, Arc<Time>) {
        let time = Arc::<Time>::default();
        let requester = Requester::with_clock(Box::new(time.clone()));
        requester.set_bus_master(true);
        for iova in [0x1000, 0x2000] {
            let memory = MemoryFile::create("ram", 0x1000).unwrap();
            let fd = memory.file().try_clone().unwrap().into();
            requester
                .map(iova, 0x1000, (true, true), Some((fd, 0)))
                .unwrap();
        }
        let span = || Span {
            file: Arc::new(MemoryFile::create("test", 0x1000).unwrap()),
            offset: 0,
        };
        let window = PeerWindow {
            address: 0x1_0000,
            size: 0x1000,
            claim: 1,
            memory: PeerMemory::Span(span()),
        };
        requester.set_peer(PeerId(1), vec![window]);
        let own = Window {
            address: 0x2_0000,
            size: 0x1000,
            memory: WindowMemory::Span(span()),
        };
        requester.set_window(WindowId::Bar(2), Some(own));
        (Arc::new(requester), time)
    }

    #[test]
    fn a_transfer_takes_its_time_on_the_links_that_it_takes() {
        let (requester, time) = with_links();
        let took = |address, len| {
            let before = time.now();
            let data = vec![1; len];
            requester.write(Purpose::Payload, address, &data).unwrap();
            time.now() - before
        };
        assert_eq!([took(0x1000, 0x2000), took(0x1_0000, 0x1000)], [0, 0]);
        requester.set_link(link(100));
        assert_eq!(
            took(0x1000, 0x2000),
            0x2000 + 100,
            "one request, two mappings"
        );
        assert_eq!(took(0x1_0000, 0x1000), 0x1000 + 100);
        assert_eq!(took(0x2_0000, 0x1000), 0, "own memory is behind no link");
        let peer = link(30);
        let meters = peer.meters().try_clone_to_owned().unwrap();
        requester
            .set_peer_link(PeerId(1), peer.speed(), meters)
            .unwrap();
        assert_eq!(took(0x1_0000, 0x1000), 0x1000 + 130);
        assert_eq!(took(0x1000, 0x1000), 0x1000 + 100);
    }

    #[test]
    fn what_is_read_from_several_places_has_the_latency_once() {
        let (requester, time) = with_links();
        requester.set_link(link(100));
        let mut data = [0; 0x300];
        let places = [(0x1000, 0x100), (0x2f00, 0x100), (0x1800, 0x100)];
        requester
            .gather(Purpose::Payload, places, &mut data)
            .unwrap();
        assert_eq!(time.now(), 0x300 + 100);
    }

    #[test]
    fn a_reset_ends_the_wait_for_a_link() {
        let (requester, time) = with_links();
        requester.set_link(link(100_000_000));
        *time.resets.lock().unwrap() = Some(Arc::downgrade(&requester));
        let error = requester
            .write(Purpose::Payload, 0x1000, &[1; 8])
            .unwrap_err();
        assert_eq!(error.cause, DmaFault::NotMaster);
        assert_eq!(time.now(), NAP);
    }
}
