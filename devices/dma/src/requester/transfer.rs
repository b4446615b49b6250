//! One request, segment by segment, each by its own route. Segments that the client must execute
//! are sent to it together.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLockReadGuard;
use peerbar_dma_log::{Completer, Purpose, Route};

use crate::buffer::Buffer;
use crate::error::{DmaError, DmaFault};
use crate::link::{LinkPath, Transit};
use crate::pages::PageError;
use crate::peers::{PeerError, PeerId};
use crate::route::{RouteTable, Target};
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::switch_limits::MESSAGE_BYTES;
use crate::tag::Tag;
use crate::upstream::{Ask, UpstreamError};

use super::Requester;

/// Bytes of the first request to the client at an unmapped address. The guest's virtio-iommu logs
/// one fault for every 4 bytes of a refused request, so a fault is presented with as few as
/// possible.
pub(super) const PROBE: usize = 4;

/// Size of the largest word that is accessed as a whole.
const WORD: usize = 8;

/// Limit of the time that a request's messages to peers take together, in nanoseconds. After that
/// no message is begun, and the request fails like one without a completion. A peer may be late to
/// answer each of them. A request of 4 MiB is 128 messages, which take a millisecond each on a
/// loaded machine.
const LONGEST_PEER_REQUEST: u64 = 4_000_000_000;

/// A request may wait for links for [`LONGEST_PEER_REQUEST`], plus the time that it takes if this
/// number of transfers, including itself, share them equally.
const LINK_SHARES: u64 = 16;

/// Longest wait for a link between two checks of bus mastering, in nanoseconds.
pub(super) const LINK_WAIT: u64 = 10_000_000;

/// Time for which a request waits for a switch that does not say what has changed: 4 s of this
/// process's own time.
const LEARNING_STEPS: u32 = 400;
const LEARNING_STEP: Duration = Duration::from_millis(10);

/// A request in progress.
struct Transfer<'a> {
    tag: Tag,
    /// The bytes on links that take time, and the address and length of the last segment among
    /// them.
    transit: Option<Transit>,
    departed: (u64, usize),
    /// Limit of its wait for links, and the time that it has waited, in nanoseconds.
    link_limit: u64,
    link_waited: u64,
    /// The time that peers have taken to answer messages.
    waited: u64,
    /// Segments for the client, to be sent together, and a note about each.
    asks: Vec<Ask<'a>>,
    notes: Vec<Note>,
}

/// The facts about a segment before the client has executed it.
struct Note {
    completer: Completer,
    started: u64,
    path: Option<LinkPath>,
}

impl Requester {
    /// Reads `data.len()` bytes at `address`.
    pub fn read(&self, tag: impl Into<Tag>, address: u64, data: &mut [u8]) -> Result<(), DmaError> {
        self.access(tag, address, Buffer::Read(data))
    }

    /// Reads the ranges of a scatter-gather list, addresses and lengths, as one request. Together
    /// they must be as long as `data`.
    pub fn gather(
        &self,
        tag: impl Into<Tag>,
        list: impl IntoIterator<Item = (u64, usize)>,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        self.transfer(tag.into(), list, Buffer::Read(data))
    }

    /// Writes `data` at `address`.
    pub fn write(&self, tag: impl Into<Tag>, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.access(tag, address, Buffer::Write(data))
    }

    /// Writes the ranges of a scatter-gather list, addresses and lengths, as one request. Together
    /// they must be as long as `data`.
    pub fn scatter(
        &self,
        tag: impl Into<Tag>,
        list: impl IntoIterator<Item = (u64, usize)>,
        data: &[u8],
    ) -> Result<(), DmaError> {
        self.transfer(tag.into(), list, Buffer::Write(data))
    }

    /// Reads or writes at `address`.
    pub fn access(
        &self,
        tag: impl Into<Tag>,
        address: u64,
        data: Buffer<'_>,
    ) -> Result<(), DmaError> {
        self.transfer(tag.into(), [(address, data.len())], data)
    }

    /// Moves all the data, then waits until it can have arrived.
    fn transfer<'a>(
        &self,
        tag: Tag,
        list: impl IntoIterator<Item = (u64, usize)>,
        mut buffer: Buffer<'a>,
    ) -> Result<(), DmaError> {
        let mut transfer = Transfer {
            tag,
            transit: None,
            departed: (0, 0),
            link_limit: LONGEST_PEER_REQUEST,
            link_waited: 0,
            waited: 0,
            asks: Vec::new(),
            notes: Vec::new(),
        };
        let mut list = list.into_iter();
        let moved = list
            .try_for_each(|(address, len)| self.range(&mut transfer, address, buffer.take(len)));
        // Segments for the client precede the one that has failed.
        self.ask_together(&mut transfer)?;
        moved?;
        match transfer.transit.take() {
            Some(transit) => self.arrive(&mut transfer, transit),
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
            let refused = SegmentResult::refused(DmaFault::Wraps);
            let segment = segment_of(&buffer, address, 0);
            return self.account(transfer.tag, segment, &refused);
        }
        let mut at = address;
        while !buffer.is_empty() {
            let done = self.segment(transfer, at, &mut buffer)?;
            at = at.wrapping_add(done as u64);
        }
        Ok(())
    }

    /// Executes the first segment of a request and records it, or defers it for the client. Removes
    /// it from the buffer and returns its length.
    fn segment<'a>(
        &self,
        transfer: &mut Transfer<'a>,
        address: u64,
        buffer: &mut Buffer<'a>,
    ) -> Result<usize, DmaError> {
        let started = self.started();
        if !self.learn_changes() {
            let refused = SegmentResult::refused(DmaFault::NotMaster);
            let whole = segment_of(buffer, address, started);
            let refused = self.account(transfer.tag, whole, &refused);
            return refused.map(|()| buffer.len());
        }
        let fault = self.injected(transfer.tag, address, buffer);
        let routes = self.route_table();
        let segment = routes.route(address, buffer.len(), buffer.direction());
        if routes.ats {
            self.share_ats(&routes);
        }
        let mut part = buffer.take(segment.len);
        let (direction, len) = part.extent();
        let path = routes.link_path(&segment.target, direction);
        let (route, completer) = segment.target.route_and_completer();
        let is_asked = match segment.target {
            Target::RemoteRam | Target::Device => true,
            // A register is not probed: it is written by one access.
            Target::Unmapped => transfer.tag.purpose == Purpose::Register,
            _ => false,
        };
        if is_asked && fault.is_none() {
            transfer.asks.push(Ask::new(address, part));
            transfer.notes.push(Note {
                completer,
                started,
                path,
            });
            return Ok(len);
        }
        let (target, waited) = (&segment.target, &mut transfer.waited);
        let outcome = match fault {
            None => self.reach(routes, target, waited, address, &mut part),
            Some(fault) => self.reach_with(fault, routes, target, waited, address, &mut part),
        };
        let refused = outcome == Err(DmaFault::NoPage);
        let done = SegmentResult {
            route: if refused { Route::Refused } else { route },
            completer,
            outcome,
        };
        let ended = DmaSegment {
            address,
            len,
            direction,
            started,
        };
        self.account(transfer.tag, ended, &done)?;
        self.depart(transfer, path, (address, len))?;
        Ok(len)
    }

    /// Waits until all earlier changes of the peers' windows are known. A switch that does not
    /// report its changes in time is lost. Returns `false` if the function may no longer issue
    /// requests.
    pub(crate) fn learn_changes(&self) -> bool {
        self.learn_changes_in(LEARNING_STEPS)
    }

    /// Returns the same, in this number of steps.
    pub(super) fn learn_changes_in(&self, steps: u32) -> bool {
        let missed = || {
            let routes = self.route_table();
            let changes = routes.compared_changes().filter(|_| routes.may_request())?;
            Some((Arc::clone(changes), changes.missed()?))
        };
        let Some((changes, count)) = missed() else {
            return true;
        };
        // In steps, so that a process that was stopped in between still has the time that it needs.
        for _ in 0..steps {
            if changes.wait(count, LEARNING_STEP) {
                return true;
            }
            if !self.route_table().may_request() {
                return false;
            }
        }
        self.leave_switch(&changes, count);
        true
    }

    /// Reads or writes at a target. Copies hold the lock of the routes; requests to others release
    /// it first. `waited` is that of the request.
    pub(super) fn reach(
        &self,
        routes: RwLockReadGuard<'_, RouteTable>,
        target: &Target,
        waited: &mut u64,
        address: u64,
        part: &mut Buffer<'_>,
    ) -> Result<(), DmaFault> {
        match target {
            Target::NotMaster => Err(DmaFault::NotMaster),
            Target::OwnRegisters => Err(DmaFault::OwnRegisters),
            Target::Own(span) | Target::Peer(_, span) | Target::Ram(span) => {
                let copied = span.file.access(span.offset, part.reborrow());
                copied.map_err(|_| DmaFault::NoMemory)
            }
            Target::OwnPage(table, offset) => {
                let copied = table.access(*offset, part.reborrow());
                copied.map_err(|error| match error {
                    PageError::Missing { .. } => DmaFault::NoPage,
                    _ => DmaFault::NoMemory,
                })
            }
            Target::PeerGone => Err(DmaFault::Peer(PeerError::Gone)),
            Target::PeerRefused => Err(DmaFault::Peer(PeerError::Unsupported)),
            Target::PeerDropped => match part {
                Buffer::Write(_) => Ok(()),
                Buffer::Read(_) => Err(DmaFault::Peer(PeerError::TimedOut)),
            },
            Target::PeerByMessage(peer) => {
                drop(routes);
                self.ask_peer(*peer, waited, address, part.reborrow())
            }
            Target::Forbidden => {
                drop(routes);
                self.deny(address, part)
            }
            Target::Unmapped | Target::RemoteRam | Target::Device => {
                drop(routes);
                self.explore(address, part)
            }
        }
    }

    /// Asks a peer step by step, as long as the function may issue requests and peers have not kept
    /// the request waiting for too long. A slow peer delays a reset by one step, and its requester
    /// by one step and [`LONGEST_PEER_REQUEST`].
    fn ask_peer(
        &self,
        peer: PeerId,
        waited: &mut u64,
        mut address: u64,
        mut part: Buffer<'_>,
    ) -> Result<(), DmaFault> {
        let peers = self.peers.read().clone();
        let peers = peers.ok_or(DmaFault::Peer(PeerError::Gone))?;
        while !part.is_empty() {
            if *waited > LONGEST_PEER_REQUEST {
                return Err(DmaFault::Peer(PeerError::TimedOut));
            }
            if !self.route_table().may_request() {
                return Err(DmaFault::NotMaster);
            }
            let step = part.take(part.len().min(MESSAGE_BYTES));
            let behind = address.wrapping_add(step.len() as u64);
            let begin = self.clock.now();
            peers.access(peer, address, step).map_err(DmaFault::Peer)?;
            let took = self.clock.now().saturating_sub(begin);
            *waited = waited.saturating_add(took);
            address = behind;
        }
        Ok(())
    }

    /// Sends all deferred segments to the client, and records their results. Returns the first
    /// failure.
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
            let done = SegmentResult {
                route: Route::Upstream,
                completer: note.completer,
                outcome,
            };
            let segment = segment_of(&ask.data, ask.address, note.started);
            let one = self.account(transfer.tag, segment, &done);
            all =
                all.and(one.and_then(|()| {
                    self.depart(transfer, note.path, (segment.address, segment.len))
                }));
        }
        all
    }

    /// Adds a segment to the transit, if it takes time. A transit on other links arrives first.
    fn depart(
        &self,
        transfer: &mut Transfer<'_>,
        path: Option<LinkPath>,
        segment: (u64, usize),
    ) -> Result<(), DmaError> {
        let Some(path) = path else {
            return Ok(());
        };
        let (bytes, transit) = (segment.1 as u64, &mut transfer.transit);
        if !transit.as_mut().is_some_and(|t| t.join(&path, bytes)) {
            if let Some(before) = transit.take() {
                self.arrive(transfer, before)?;
            }
            transfer.transit = Some(Transit::new(path, bytes, self.clock.now()));
        }
        transfer.departed = segment;
        Ok(())
    }

    /// Waits until the transit has arrived, the function may no longer issue requests, or the links
    /// have taken too long, since a peer itself states its link's speed and when it is free. The
    /// segments count as done in any case: their bytes have been copied.
    fn arrive(&self, transfer: &mut Transfer<'_>, mut transit: Transit) -> Result<(), DmaError> {
        let fair = transit.time_alone().saturating_mul(LINK_SHARES);
        transfer.link_limit = transfer.link_limit.saturating_add(fair);
        while let Some(left) = transit.next(self.clock.now()) {
            let cause = if !self.route_table().may_request() {
                Some(DmaFault::NotMaster)
            } else if transfer.link_waited > transfer.link_limit {
                Some(DmaFault::LinkBusy)
            } else {
                None
            };
            if let Some(cause) = cause {
                let (address, len) = transfer.departed;
                return Err(DmaError {
                    origin: transfer.tag.origin,
                    address,
                    len,
                    cause,
                });
            }
            let wait = left.min(LINK_WAIT);
            self.clock.sleep(wait);
            // Time for which the process was stopped does not count.
            transfer.link_waited = transfer.link_waited.saturating_add(wait);
        }
        Ok(())
    }

    /// Lets the client execute all of `asks`, as long as the function may issue requests.
    fn carry_out(&self, asks: &mut [Ask<'_>]) {
        let upstream = self.upstream.read().clone();
        match (upstream, asks) {
            (Some(upstream), asks) => {
                upstream.carry_out(asks, &|| self.route_table().may_request())
            }
            (None, [first, ..]) => first.outcome = Some(Err(UpstreamError::Gone)),
            (None, []) => {}
        }
    }

    /// Lets the client execute one request.
    fn ask(&self, address: u64, data: Buffer<'_>) -> Result<(), DmaFault> {
        let mut ask = [Ask::new(address, data)];
        self.carry_out(&mut ask);
        let [ask] = ask;
        settled(ask.outcome)
    }

    /// Lets the client execute a request at an unmapped address: a few bytes first, and the rest if
    /// those succeed. An aligned read of 8 bytes is sent as a whole: it may be a counter, whose
    /// halves must be of one value.
    fn explore(&self, address: u64, part: &mut Buffer<'_>) -> Result<(), DmaFault> {
        let mut rest = part.reborrow();
        let is_read = matches!(rest, Buffer::Read(_));
        let is_word = is_read && rest.len() == WORD && address % WORD as u64 == 0;
        let few = rest.take(if is_word { WORD } else { PROBE });
        let behind = address.wrapping_add(few.len() as u64);
        self.ask(address, few)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.ask(behind, rest)
    }

    /// Presents an errant request at `address` to the client, if the address is unmapped, so that
    /// the guest's IOMMU driver logs it. The client is asked to read a few bytes, which changes
    /// nothing.
    fn show(&self, address: u64) {
        let mut probe = [0; PROBE];
        let len = usize::try_from(u64::MAX - address).map_or(PROBE, |rest| PROBE.min(rest + 1));
        let probe = Buffer::Read(&mut probe).take(len);
        let target = self
            .route_table()
            .route(address, len, probe.direction())
            .target;
        if matches!(target, Target::Unmapped) && self.ask(address, probe).is_ok() {
            log::debug!("{address:#x}: the client knows what is there, this function does not");
        }
    }

    /// Asks the client for a few bytes that its mapping does not permit, for its IOMMU to report.
    /// Always fails.
    fn deny(&self, address: u64, part: &mut Buffer<'_>) -> Result<(), DmaFault> {
        self.ask(address, part.reborrow().take(PROBE))?;
        Err(DmaFault::Forbidden)
    }
}

/// Returns the segment whose data is all of this buffer.
fn segment_of(buffer: &Buffer<'_>, address: u64, started: u64) -> DmaSegment {
    let (direction, len) = buffer.extent();
    DmaSegment {
        address,
        len,
        direction,
        started,
    }
}

/// Returns the outcome of a request to the client. Only the function itself stops requests without
/// a failure, and a request that was not sent must not pass as done.
fn settled(outcome: Option<Result<(), UpstreamError>>) -> Result<(), DmaFault> {
    match outcome {
        None | Some(Err(UpstreamError::Stopped)) => Err(DmaFault::NotMaster),
        Some(outcome) => outcome.map_err(DmaFault::Upstream),
    }
}
