//! The transport of an adapter: the effects of each message of the fabric, of each request and of
//! time. It contains no I/O and no clock.
//!
//! The fabric may lose, delay, reorder and duplicate packets. A request is sent again until its
//! response comes, and its peer executes it at most once: the peer remembers each request until the
//! requester no longer waits for it. Both know each other by their incarnations, so neither takes
//! its peer's successor for the peer.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use self::incoming::{Incoming, Taken};
use self::outgoing::{Due, Outgoing};
use crate::gid::Gid;
use crate::limits::{KEPT_SHARE, MAX_KEPT, MAX_PEERS, MAX_REQUESTS};
use crate::link_statistics::LinkStatistics;
use crate::message::{Body, Incarnation, Message};
use crate::request::{RequestData, RequestError, RequestId, SendError};

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

/// Interval at which the fabric is asked whether a peer still exists.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same for a peer without pending requests, while there is no room for other peers: adapters
/// that come and go occupy entries until the fabric reports that they have left.
const INTERVAL_WHEN_FULL: Duration = Duration::from_millis(50);

/// A step for the link. Steps are executed in order. `D` identifies an adapter's own request.
#[derive(Debug)]
pub(crate) enum Output<D> {
    /// Send it to the fabric, or to the peer by a direct connection. It may be lost.
    Send(Message),
    /// Send it to the fabric, because it may have been lost, and because the fabric knows whether
    /// the peer exists.
    SendByFabric(Message),
    /// A request of this adapter has ended.
    Complete(D, Result<Vec<u8>, RequestError>),
    /// A peer has sent a datagram.
    Datagram(Gid, Vec<u8>),
    /// A peer has sent a request, for the first time.
    Request(RequestId, RequestData),
    /// A peer has left, or another adapter has its GID now: its direct connection is over.
    Gone(Gid),
    /// There is a direct connection with a peer.
    Direct(Gid, Incarnation, Arc<OwnedFd>),
}

/// The state of the communication with one peer.
#[derive(Debug)]
struct Peer<D> {
    /// The peer, or `None` while the fabric resolves the GID.
    known: Option<Known>,
    outgoing: Outgoing<D>,
    incoming: Incoming,
    /// The time at which the fabric was asked, or has answered.
    asked_at: Instant,
    is_direct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    incarnation: Incarnation,
    /// The peer takes descriptors; `None` until the fabric has told.
    takes_descriptors: Option<bool>,
}

/// The state of one attachment.
#[derive(Debug)]
pub(crate) struct Transport<D> {
    peers: BTreeMap<Gid, Peer<D>>,
    /// Number of requests of each GID that are being executed, including those of former holders
    /// and those that nobody waits for.
    running: BTreeMap<Gid, usize>,
    outputs: Vec<Output<D>>,
    /// Statistics of all attachments.
    statistics: LinkStatistics,
}

impl<D> Transport<D> {
    pub(crate) fn new() -> Self {
        Self {
            peers: BTreeMap::new(),
            running: BTreeMap::new(),
            outputs: Vec::new(),
            statistics: LinkStatistics::default(),
        }
    }

    /// Returns the statistics.
    pub(crate) fn statistics(&self) -> LinkStatistics {
        self.statistics
    }

    /// Takes the outputs to execute, in order. Executing them may lead to more.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output<D>> {
        std::mem::take(&mut self.outputs)
    }

    /// Sends a request. `done` identifies it at its end, and is returned if nothing is sent.
    pub(crate) fn request(
        &mut self,
        to: Gid,
        request: RequestData,
        done: D,
        now: Instant,
    ) -> Result<(), (D, SendError)> {
        if !self.peers.contains_key(&to) {
            if self.is_full() {
                return Err((done, SendError::Busy));
            }
            self.peers.insert(to, Peer::new(None, now));
        }
        let Some(peer) = self.peers.get_mut(&to) else {
            return Err((done, SendError::Busy));
        };
        peer.outgoing.add(request, done, now)?;
        self.transmit(to, now);
        Ok(())
    }

    /// Returns `Some(true)` if a peer takes descriptors, or `None` if the fabric has not told yet.
    pub(crate) fn takes_descriptors(&self, gid: Gid) -> Option<bool> {
        self.peers.get(&gid)?.known?.takes_descriptors
    }

    /// Sends the response to a request of a peer, or a refusal if `data` is `None`. Sends nothing
    /// if the requester no longer waits for it. Must be called once for each [`Output::Request`].
    pub(crate) fn respond(&mut self, id: RequestId, data: Option<ByteBuf>) {
        if let Some(running) = self.running.get_mut(&id.from) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&id.from);
            }
        }
        let peer = self.peers.get_mut(&id.from);
        let peer = peer.filter(|peer| peer.incarnation() == Some(id.incarnation));
        if let Some(response) = peer.and_then(|peer| peer.incoming.respond(id.tag, data)) {
            self.send(id.from, id.incarnation, response);
        }
    }

    /// Handles a message of the fabric. Returns `false` if a fabric would not send it.
    pub(crate) fn receive(&mut self, message: Message, now: Instant) -> bool {
        match message {
            Message::Peer {
                gid,
                incarnation,
                takes_descriptors,
            } => self.resolved(gid, incarnation, takes_descriptors, now),
            Message::Direct {
                gid,
                incarnation,
                socket: Some(socket),
            } => self.connected(gid, incarnation, socket, now),
            Message::Packet {
                peer,
                body: Body::Datagram { data },
                ..
            } => self.outputs.push(Output::Datagram(peer, data.into_vec())),
            Message::Packet {
                peer,
                incarnation,
                body,
            } => self.packet(peer, incarnation, body, now),
            _ => return false,
        }
        true
    }

    /// Handles a packet that came by a direct connection. It does not make the sender a peer:
    /// before the connection ends, the fabric may have named the peer's successor, or reported that
    /// the peer has left.
    pub(crate) fn receive_directly(&mut self, packet: Message, now: Instant) {
        let is_known = match &packet {
            Message::Packet {
                peer, incarnation, ..
            } => self.knows(*peer, *incarnation),
            _ => false,
        };
        if is_known {
            self.receive(packet, now);
        }
    }

    /// Sends unanswered packets again, ends requests that have taken too long, and forgets peers
    /// that have left.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_full = self.is_full();
        let gids: Vec<Gid> = self.peers.keys().copied().collect();
        for gid in gids {
            let Some(peer) = self.peers.get_mut(&gid) else {
                continue;
            };
            let late = peer.outgoing.expire(now);
            if let (false, Some(oldest), Some(incarnation)) =
                (late.is_empty(), peer.outgoing.settled(), peer.incarnation())
            {
                self.outputs.push(Output::Send(Message::Packet {
                    peer: gid,
                    incarnation,
                    body: Body::Settled { oldest },
                }));
            }
            for done in late {
                let ended = Output::Complete(done, Err(RequestError::TimedOut));
                self.outputs.push(ended);
            }
            if peer.ask_at(is_full) <= now {
                peer.asked_at = now;
                self.outputs.push(Output::Send(Message::Resolve { gid }));
            }
            self.transmit(gid, now);
        }
    }

    /// Returns the time at which [`Transport::expire`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (peers, is_full) = (self.peers.values(), self.is_full());
        peers
            .flat_map(|peer| [Some(peer.ask_at(is_full)), peer.outgoing.deadline()])
            .flatten()
            .min()
    }

    /// Handles the loss of the fabric, and of all peers. Pending requests end.
    pub(crate) fn lose(&mut self) {
        let gids: Vec<Gid> = self.peers.keys().copied().collect();
        gids.into_iter().for_each(|gid| self.forget(gid));
    }

    fn is_full(&self) -> bool {
        self.peers.len() >= MAX_PEERS
    }

    /// Handles the fabric's answer for a GID.
    fn resolved(
        &mut self,
        gid: Gid,
        incarnation: Incarnation,
        takes_descriptors: bool,
        now: Instant,
    ) {
        if incarnation == Incarnation::NONE {
            return self.forget(gid);
        }
        let is_other = |peer: &Peer<D>| peer.incarnation().is_some_and(|old| old != incarnation);
        if self.peers.get(&gid).is_some_and(is_other) {
            self.forget(gid);
        }
        // A late answer does not make an adapter a peer.
        if let Some(peer) = self.peers.get_mut(&gid) {
            peer.known = Some(Known {
                incarnation,
                takes_descriptors: Some(takes_descriptors),
            });
            peer.asked_at = now;
            if takes_descriptors && !peer.is_direct {
                let connect = Message::Connect { gid };
                self.outputs.push(Output::Send(connect));
            }
            self.transmit(gid, now);
        }
    }

    /// Handles a new direct connection with a peer.
    fn connected(
        &mut self,
        gid: Gid,
        incarnation: Incarnation,
        socket: Arc<OwnedFd>,
        now: Instant,
    ) {
        if let Some(peer) = self.introduce(gid, incarnation, now) {
            peer.is_direct = true;
        }
        // Packets on it from an adapter for which there is no room are not taken, until the fabric
        // has brought a packet of it.
        let direct = Output::Direct(gid, incarnation, socket);
        self.outputs.push(direct);
    }

    /// Handles the end of the direct connection with a peer. The fabric is asked for another one
    /// when it is next asked for the peer.
    pub(crate) fn disconnected(&mut self, gid: Gid) {
        if let Some(peer) = self.peers.get_mut(&gid) {
            peer.is_direct = false;
        }
    }

    /// Returns the peer that the fabric has named. Returns `None` if there is no room, until
    /// adapters that have left are forgotten.
    fn introduce(
        &mut self,
        gid: Gid,
        incarnation: Incarnation,
        now: Instant,
    ) -> Option<&mut Peer<D>> {
        let known = self.peers.get(&gid).and_then(Peer::incarnation);
        if known.is_some_and(|known| known != incarnation) {
            self.forget(gid);
        }
        if !self.peers.contains_key(&gid) {
            if self.is_full() {
                return None;
            }
            self.peers.insert(gid, Peer::new(None, now));
        }
        let peer = self.peers.get_mut(&gid)?;
        peer.known.get_or_insert(Known {
            incarnation,
            takes_descriptors: None,
        });
        Some(peer)
    }

    /// Returns `true` if the sender of a packet is known. Only a request makes it known, because
    /// that takes an entry; without room, the request will be sent again.
    fn knows_sender(
        &mut self,
        from: Gid,
        incarnation: Incarnation,
        body: &Body,
        now: Instant,
    ) -> bool {
        match body {
            Body::Request { .. } => self.introduce(from, incarnation, now).is_some(),
            _ => self.knows(from, incarnation),
        }
    }

    /// Returns `true` if a GID's holder is a peer with that incarnation.
    fn knows(&self, gid: Gid, incarnation: Incarnation) -> bool {
        self.peers.get(&gid).and_then(Peer::incarnation) == Some(incarnation)
    }

    fn packet(&mut self, from: Gid, incarnation: Incarnation, body: Body, now: Instant) {
        if !self.knows_sender(from, incarnation, &body, now) {
            return;
        }
        let kept: usize = self.peers.values().map(|peer| peer.incoming.kept()).sum();
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        let running = self.running.get(&from).copied().unwrap_or(0);
        let keeps_too_much = kept >= MAX_KEPT && peer.incoming.kept() >= KEPT_SHARE;
        let is_full = running >= MAX_REQUESTS || self.running.len() > MAX_PEERS || keeps_too_much;
        match body {
            Body::Request {
                tag,
                oldest,
                data,
                descriptors,
            } => match peer.incoming.take(tag, oldest, is_full) {
                Taken::First => {
                    self.running.insert(from, running + 1);
                    let id = RequestId {
                        from,
                        incarnation,
                        tag,
                    };
                    let request = RequestData { data, descriptors };
                    self.outputs.push(Output::Request(id, request));
                }
                Taken::Again(answer) => {
                    if let Body::Response { data, .. } = &answer {
                        self.statistics
                            .count(data.as_ref().map_or(0, |data| data.len()));
                    }
                    self.outputs.push(Output::SendByFabric(Message::Packet {
                        peer: from,
                        incarnation,
                        body: answer,
                    }));
                }
                Taken::Stale => {}
            },
            Body::Settled { oldest } => peer.incoming.settle(oldest),
            Body::Working { tag } => peer.outgoing.is_alive(tag, now),
            Body::Response { tag, data } => {
                let Some(done) = peer.outgoing.end(tag, now) else {
                    return;
                };
                let outcome = data.map(ByteBuf::into_vec).ok_or(RequestError::Refused);
                let settled = peer.outgoing.settled();
                self.outputs.push(Output::Complete(done, outcome));
                if let Some(oldest) = settled {
                    self.send(from, incarnation, Body::Settled { oldest });
                }
            }
            Body::Datagram { .. } => {}
        }
    }

    /// Sends the packets that are due to a peer, if it is known.
    fn transmit(&mut self, to: Gid, now: Instant) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let takes_descriptors = peer.known.and_then(|known| known.takes_descriptors);
        let incarnation = peer.incarnation();
        let mut asks = false;
        let (is_known, statistics) = (incarnation.is_some(), &mut self.statistics);
        let due = peer
            .outgoing
            .due(takes_descriptors, is_known, now, statistics);
        for due in due {
            let packet = |incarnation, body| Message::Packet {
                peer: to,
                incarnation,
                body,
            };
            let output = match (due, incarnation) {
                (Due::Send(body), Some(incarnation)) => Output::Send(packet(incarnation, body)),
                (Due::SendAgain(body), Some(incarnation)) => {
                    Output::SendByFabric(packet(incarnation, body))
                }
                (Due::Refuse(done), _) => Output::Complete(done, Err(RequestError::NoDescriptors)),
                (Due::Send(_) | Due::SendAgain(_) | Due::Ask, _) => {
                    asks = true;
                    continue;
                }
            };
            self.outputs.push(output);
        }
        if asks {
            let ask = Message::Resolve { gid: to };
            self.outputs.push(Output::Send(ask));
        }
    }

    fn send(&mut self, to: Gid, incarnation: Incarnation, body: Body) {
        self.outputs.push(Output::Send(Message::Packet {
            peer: to,
            incarnation,
            body,
        }));
    }

    /// Forgets a peer that is gone.
    fn forget(&mut self, gid: Gid) {
        let Some(peer) = self.peers.remove(&gid) else {
            return;
        };
        for done in peer.outgoing.into_all() {
            let ended = Output::Complete(done, Err(RequestError::Gone));
            self.outputs.push(ended);
        }
        if peer.known.is_some() {
            self.outputs.push(Output::Gone(gid));
        }
    }
}

impl<D> Peer<D> {
    fn new(known: Option<Known>, now: Instant) -> Self {
        Self {
            known,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            asked_at: now,
            is_direct: false,
        }
    }

    /// Returns the time at which the fabric is asked next.
    fn ask_at(&self, is_full: bool) -> Instant {
        let is_idle = self.outgoing.settled().is_some();
        let interval = match is_full && is_idle {
            true => INTERVAL_WHEN_FULL,
            false => INTERVAL,
        };
        self.asked_at + interval
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.known.map(|known| known.incarnation)
    }
}
