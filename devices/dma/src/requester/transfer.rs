//! One request, segment by segment, each by its own route. Segments that the client must execute
//! are sent to it together.

use parking_lot::RwLockReadGuard;
use peerbar_dma_log::{Completer, Purpose, Route};
use peerbar_pci::{BusAddress, Iova};

use crate::buffer::Buffer;
use crate::client::settled;
use crate::error::{DmaError, DmaFault};
use crate::link::{LinkPath, Transit};
use crate::pages::PageError;
use crate::peers::{PeerError, PeerId};
use crate::route::{RouteTable, Target};
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::switch_limits::MESSAGE_BYTES;
use crate::tag::Tag;
use crate::upstream::{UpstreamError, UpstreamRequest};

use super::Requester;

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

/// A request in progress.
pub(super) struct Transfer<'r, 'a> {
    requester: &'r Requester,
    tag: Tag,
    /// The bytes on links that take time, and the address and length of the last segment among
    /// them.
    transit: Option<Transit>,
    departed: (Iova, usize),
    /// Limit of its wait for links, and the time that it has waited, in nanoseconds.
    link_limit: u64,
    link_waited: u64,
    /// The time that peers have taken to answer messages.
    waited: u64,
    /// Segments for the client, to be sent together, and a note about each.
    requests: Vec<UpstreamRequest<'a>>,
    notes: Vec<Note>,
}

/// The facts about a segment before the client has executed it.
struct Note {
    completer: Completer,
    started: u64,
    path: Option<LinkPath>,
}

impl<'r, 'a> Transfer<'r, 'a> {
    /// Makes a request that has not begun.
    pub(super) fn new(requester: &'r Requester, tag: Tag) -> Self {
        Self {
            requester,
            tag,
            transit: None,
            departed: (Iova(0), 0),
            link_limit: LONGEST_PEER_REQUEST,
            link_waited: 0,
            waited: 0,
            requests: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Moves all the data, then waits until it can have arrived.
    pub(super) fn run(
        mut self,
        list: impl IntoIterator<Item = (Iova, usize)>,
        mut buffer: Buffer<'a>,
    ) -> Result<(), DmaError> {
        let mut list = list.into_iter();
        let moved = list.try_for_each(|(address, len)| self.range(address, buffer.take(len)));
        // Segments for the client precede the one that has failed.
        self.ask_together()?;
        moved?;
        match self.transit.take() {
            Some(transit) => self.arrive(transit),
            None => Ok(()),
        }
    }

    fn range(&mut self, address: Iova, mut buffer: Buffer<'a>) -> Result<(), DmaError> {
        let len = buffer.len();
        if len as u64 > 1 && address.checked_add(len as u64 - 1).is_none() {
            self.requester.show(address);
            let refused = SegmentResult::refused(DmaFault::Wraps);
            let segment = segment_of(&buffer, address, 0);
            return self.account(segment, &refused);
        }
        let mut at = address;
        while !buffer.is_empty() {
            let done = self.segment(at, &mut buffer)?;
            at = at.wrapping_add(done as u64);
        }
        Ok(())
    }

    /// Executes the first segment of a request and records it, or defers it for the client. Removes
    /// it from the buffer and returns its length.
    fn segment(&mut self, address: Iova, buffer: &mut Buffer<'a>) -> Result<usize, DmaError> {
        let requester = self.requester;
        let started = requester.ledger.started();
        if !requester.learn_changes() {
            let refused = SegmentResult::refused(DmaFault::NotMaster);
            let whole = segment_of(buffer, address, started);
            return self.account(whole, &refused).map(|()| buffer.len());
        }
        let fault = requester.injected(self.tag, address, buffer);
        let routes = requester.route_table();
        let segment = routes.route(address, buffer.len(), buffer.direction());
        if routes.ats {
            requester.share_ats(&routes);
        }
        let mut part = buffer.take(segment.len);
        let (direction, len) = part.extent();
        let path = routes.link_path(&segment.target, direction);
        let (route, completer) = segment.target.route_and_completer();
        let is_asked = match segment.target {
            Target::RemoteRam | Target::Device => true,
            // A register is not probed: it is written by one access.
            Target::Unmapped => self.tag.purpose == Purpose::Register,
            _ => false,
        };
        if is_asked && fault.is_none() {
            self.requests.push(UpstreamRequest::new(address, part));
            self.notes.push(Note {
                completer,
                started,
                path,
            });
            return Ok(len);
        }
        let outcome = match fault {
            None => self.reach(routes, &segment.target, address, &mut part),
            Some(fault) => self.reach_with(fault, routes, &segment.target, address, &mut part),
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
        self.account(ended, &done)?;
        self.depart(path, (address, len))?;
        Ok(len)
    }

    /// Reads or writes at a target. Copies hold the lock of the routes; requests to others release
    /// it first.
    pub(super) fn reach(
        &mut self,
        routes: RwLockReadGuard<'_, RouteTable>,
        target: &Target,
        address: Iova,
        part: &mut Buffer<'_>,
    ) -> Result<(), DmaFault> {
        let requester = self.requester;
        let may_go_on = || requester.may_request();
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
                self.ask_peer(*peer, address.on_bus(), part.reborrow())
            }
            Target::Forbidden => {
                drop(routes);
                requester.client.deny(address, part, &may_go_on)
            }
            Target::Unmapped | Target::RemoteRam | Target::Device => {
                drop(routes);
                requester.client.explore(address, part, &may_go_on)
            }
        }
    }

    /// Asks a peer step by step, as long as the function may issue requests and peers have not kept
    /// the request waiting for too long. A slow peer delays a reset by one step, and its requester
    /// by one step and [`LONGEST_PEER_REQUEST`].
    fn ask_peer(
        &mut self,
        peer: PeerId,
        mut address: BusAddress,
        mut part: Buffer<'_>,
    ) -> Result<(), DmaFault> {
        let requester = self.requester;
        let peers = requester.peers.read().clone();
        let peers = peers.ok_or(DmaFault::Peer(PeerError::Gone))?;
        while !part.is_empty() {
            if self.waited > LONGEST_PEER_REQUEST {
                return Err(DmaFault::Peer(PeerError::TimedOut));
            }
            if !requester.may_request() {
                return Err(DmaFault::NotMaster);
            }
            let step = part.take(part.len().min(MESSAGE_BYTES));
            let behind = address.wrapping_add(step.len() as u64);
            let begin = requester.clock.now();
            peers.access(peer, address, step).map_err(DmaFault::Peer)?;
            let took = requester.clock.now().saturating_sub(begin);
            self.waited = self.waited.saturating_add(took);
            address = behind;
        }
        Ok(())
    }

    /// Sends all deferred segments to the client, and records their results. Returns the first
    /// failure.
    fn ask_together(&mut self) -> Result<(), DmaError> {
        let (mut requests, notes) = (
            std::mem::take(&mut self.requests),
            std::mem::take(&mut self.notes),
        );
        if requests.is_empty() {
            return Ok(());
        }
        let requester = self.requester;
        let may_go_on = || requester.may_request();
        requester.client.carry_out(&mut requests, &may_go_on);
        let mut all: Result<(), DmaError> = Ok(());
        for (request, note) in requests.iter().zip(notes) {
            let outcome = match (request.outcome, &all) {
                (Some(Err(UpstreamError::Stopped)), Err(first)) => Err(first.cause),
                (None, Err(_)) => break,
                (outcome, _) => settled(outcome),
            };
            let done = SegmentResult {
                route: Route::Upstream,
                completer: note.completer,
                outcome,
            };
            let segment = segment_of(&request.data, request.address, note.started);
            let one = self.account(segment, &done);
            let departs = |()| self.depart(note.path, (segment.address, segment.len));
            all = all.and(one.and_then(departs));
        }
        all
    }

    /// Adds a segment to the transit, if it takes time. A transit on other links arrives first.
    fn depart(&mut self, path: Option<LinkPath>, segment: (Iova, usize)) -> Result<(), DmaError> {
        let Some(path) = path else {
            return Ok(());
        };
        let bytes = segment.1 as u64;
        if !self
            .transit
            .as_mut()
            .is_some_and(|it| it.join(&path, bytes))
        {
            if let Some(before) = self.transit.take() {
                self.arrive(before)?;
            }
            self.transit = Some(Transit::new(path, bytes, self.requester.clock.now()));
        }
        self.departed = segment;
        Ok(())
    }

    /// Waits until the transit has arrived, the function may no longer issue requests, or the links
    /// have taken too long, since a peer itself states its link's speed and when it is free. The
    /// segments count as done in any case: their bytes have been copied.
    fn arrive(&mut self, mut transit: Transit) -> Result<(), DmaError> {
        let requester = self.requester;
        let fair = transit.time_alone().saturating_mul(LINK_SHARES);
        self.link_limit = self.link_limit.saturating_add(fair);
        while let Some(left) = transit.next(requester.clock.now()) {
            let cause = if !requester.may_request() {
                Some(DmaFault::NotMaster)
            } else if self.link_waited > self.link_limit {
                Some(DmaFault::LinkBusy)
            } else {
                None
            };
            if let Some(cause) = cause {
                let (address, len) = self.departed;
                return Err(DmaError {
                    origin: self.tag.origin,
                    address,
                    len,
                    cause,
                });
            }
            let wait = left.min(LINK_WAIT);
            requester.clock.sleep(wait);
            // Time for which the process was stopped does not count.
            self.link_waited = self.link_waited.saturating_add(wait);
        }
        Ok(())
    }

    /// Counts and records a segment's result, and returns it as the outcome of the request.
    fn account(&self, segment: DmaSegment, result: &SegmentResult) -> Result<(), DmaError> {
        self.requester.ledger.account(self.tag, segment, result)
    }
}

/// Returns the segment whose data is all of this buffer.
fn segment_of(buffer: &Buffer<'_>, address: Iova, started: u64) -> DmaSegment {
    let (direction, len) = buffer.extent();
    DmaSegment {
        address,
        len,
        direction,
        started,
    }
}
