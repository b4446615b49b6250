//! What the fabric knows of each connection.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use thiserror::Error;

use super::transit::Parcel;
use crate::gid::Gid;
use crate::limits::MAX_ANSWERS;
use crate::message::{Incarnation, Message, Refusal};

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
    pub(super) port: PortId,
    pub(super) name: String,
    pub(super) incarnation: Incarnation,
    pub(super) held: HeldPackets,
}

/// What the fabric holds of an adapter: packets, and the descriptors that they have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldPackets {
    pub(super) packets: usize,
    pub(super) descriptors: usize,
}

impl Holder {
    /// Whether a packet for this incarnation is for it.
    pub(super) fn is_meant_by(&self, incarnation: Incarnation) -> bool {
        [Incarnation::NONE, self.incarnation].contains(&incarnation)
    }
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// `None` until it is attached.
    pub(super) adapter: Option<Adapter>,
    /// The adapter of its Hello, while another has its name or GID, and until when it waits.
    pub(super) awaited: Option<(Adapter, Instant)>,
    /// What the fabric itself has to send it, which comes before the packets.
    pub(super) answers: VecDeque<Message>,
    /// Its ends of direct connections, by the adapters at the other ends, of each the newest.
    pub(super) direct: BTreeMap<Gid, Message>,
    pub(super) arrived: VecDeque<Parcel>,
}

impl Port {
    pub(super) fn new(connected: Instant) -> Self {
        Self {
            connected,
            adapter: None,
            awaited: None,
            answers: VecDeque::new(),
            direct: BTreeMap::new(),
            arrived: VecDeque::new(),
        }
    }

    /// Whether its Hello is still to come.
    pub(super) fn is_silent(&self) -> bool {
        self.adapter.is_none() && self.awaited.is_none()
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
