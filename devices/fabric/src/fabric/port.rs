//! What the fabric knows of each connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Instant;

use thiserror::Error;

use super::transit::Parcel;
use crate::gid::Gid;
use crate::limits::{MAX_ANSWERS, MAX_FAR_PEERS};
use crate::message::{Incarnation, Message, Refusal};
use crate::tunnel::Frame;

/// Number of a connection. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortId(pub(super) u64);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection that is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutOff {
    pub(crate) port: PortId,
    pub(crate) reason: Reason,
}

/// Why an adapter is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    /// It may not attach, which it is to be sent.
    #[error("it is refused: {0}")]
    Refused(#[source] Refusal),
    /// It has connected and sent no Hello.
    #[error("it sends no Hello")]
    Silent,
    /// It breaks the protocol.
    #[error("it breaks the protocol: {0}")]
    Violation(&'static str),
}

/// An adapter as it has introduced itself.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) gid: Gid,
}

/// The holder of a GID.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// Its connection, or the tunnel that leads to it.
    pub(super) port: PortId,
    pub(super) name: String,
    pub(super) incarnation: Incarnation,
    /// As the fabric knows it that it is attached to.
    pub(super) there: Incarnation,
    pub(super) held: HeldPackets,
}

/// What the fabric holds of an adapter: packets, and the descriptors that they have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldPackets {
    pub(super) packets: usize,
    pub(super) descriptors: usize,
}

impl Holder {
    /// Whether it is attached to this fabric.
    pub(super) fn is_here(&self) -> bool {
        self.there == self.incarnation
    }

    /// Whether a packet for this incarnation is for it.
    pub(super) fn is_meant_by(&self, incarnation: Incarnation) -> bool {
        [Incarnation::NONE, self.incarnation].contains(&incarnation)
    }

    /// The notice of it to other fabrics.
    pub(super) fn present(&self, gid: Gid) -> Frame {
        Frame::Present {
            name: self.name.clone(),
            gid,
            incarnation: self.incarnation,
        }
    }
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// Whether another fabric is at its other end.
    pub(super) is_tunnel: bool,
    /// `None` until it is attached.
    pub(super) adapter: Option<Adapter>,
    /// The adapter of its Hello, while another has its name or GID, and until when it waits.
    pub(super) awaited: Option<(Adapter, Instant)>,
    /// What the fabric itself has to send it, which comes before the packets.
    pub(super) answers: VecDeque<Message>,
    /// Its ends of direct connections, by the adapters at the other ends, of each the newest.
    pub(super) direct: BTreeMap<Gid, Message>,
    /// What the fabric has to say to the one at the other end.
    pub(super) notices: VecDeque<Frame>,
    pub(super) arrived: VecDeque<Parcel>,
    /// The adapters that it has announced, if it is another fabric: name and incarnation there. Some GIDs may be others'.
    pub(super) announced: BTreeMap<Gid, (String, Incarnation)>,
    /// The adapters of other fabrics that have sent this one a packet, as far as they are still there.
    pub(super) far_peers: BTreeSet<Gid>,
}

impl Port {
    pub(super) fn new(connected: Instant) -> Self {
        Self {
            connected,
            is_tunnel: false,
            adapter: None,
            awaited: None,
            answers: VecDeque::new(),
            direct: BTreeMap::new(),
            notices: VecDeque::new(),
            arrived: VecDeque::new(),
            announced: BTreeMap::new(),
            far_peers: BTreeSet::new(),
        }
    }

    /// Whether an adapter of another fabric may have dealings with it, so that those of this fabric find room.
    pub(super) fn takes_far_peer(&mut self, gid: Gid) -> bool {
        let has_room = self.far_peers.len() < MAX_FAR_PEERS;
        self.far_peers.contains(&gid) || has_room && self.far_peers.insert(gid)
    }

    /// Whether its Hello is still to come.
    pub(super) fn is_silent(&self) -> bool {
        self.adapter.is_none() && self.awaited.is_none() && !self.is_tunnel
    }

    /// Sends it something of the fabric's, unless it does not read what it has asked for.
    pub(super) fn answer(&mut self, message: Message) {
        if self.answers.len() < MAX_ANSWERS {
            self.answers.push_back(message);
        }
    }

    /// How many packets of an adapter wait for it.
    pub(super) fn waiting_of(&self, gid: Gid) -> usize {
        let waiting = self.arrived.iter();
        waiting.filter(|parcel| parcel.sender.gid == gid).count()
    }

    /// Takes out the packet of an adapter that waits longest.
    pub(super) fn take_oldest_of(&mut self, gid: Gid) -> Option<Parcel> {
        let mut waiting = self.arrived.iter();
        let oldest = waiting.position(|parcel| parcel.sender.gid == gid)?;
        self.arrived.remove(oldest)
    }
}
