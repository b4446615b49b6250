//! The fabric's state of each connection.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use thiserror::Error;

use crate::gid::Gid;
use crate::limits::MAX_ANSWERS;
use crate::message::{AdapterId, Body, Incarnation, Message, Refusal};

/// Number of a connection. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortId(pub(super) u64);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutOff {
    pub(crate) port: PortId,
    pub(crate) reason: Reason,
}

/// The reason why an adapter is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Reason {
    /// The adapter may not attach, and must be told so.
    #[error("it is refused: {0}")]
    Refused(#[source] Refusal),
    /// The adapter has connected and sent no Hello.
    #[error("it sends no Hello")]
    Silent,
    /// The adapter violates the protocol.
    #[error("it breaks the protocol: {0}")]
    Violation(&'static str),
}

/// An adapter, by its Hello.
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

/// The packets of an adapter that the fabric holds, and their descriptors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldPackets {
    pub(super) packets: usize,
    pub(super) descriptors: usize,
}

impl Holder {
    /// Returns `true` if a packet for this incarnation is for it.
    pub(super) fn is_meant_by(&self, incarnation: Incarnation) -> bool {
        [Incarnation::NONE, self.incarnation].contains(&incarnation)
    }
}

/// A packet in transit.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) sender: AdapterId,
    pub(super) destination: PortId,
    pub(super) receiver: Gid,
    pub(super) body: Body,
}

impl Parcel {
    /// Returns the packet as it arrives.
    pub(super) fn message(self) -> Message {
        Message::Packet {
            peer: self.sender.gid,
            incarnation: self.sender.incarnation,
            body: self.body,
        }
    }
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) connected: Instant,
    /// The adapter, or `None` until it is attached.
    pub(super) adapter: Option<Adapter>,
    /// The adapter in its Hello, while another one has its name or GID, and the end of its wait.
    pub(super) awaited: Option<(Adapter, Instant)>,
    /// The fabric's own messages to it, which are sent before the packets.
    pub(super) answers: VecDeque<Message>,
    /// Its newest end of a direct connection with each other adapter.
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

    /// Returns `true` if its Hello is still to come.
    pub(super) fn is_silent(&self) -> bool {
        self.adapter.is_none() && self.awaited.is_none()
    }

    /// Sends it a message of the fabric, unless it does not read the answers to its requests.
    pub(super) fn answer(&mut self, message: Message) {
        if self.answers.len() < MAX_ANSWERS {
            self.answers.push_back(message);
        }
    }

    /// Returns the number of an adapter's packets that wait for it.
    pub(super) fn waiting_of(&self, gid: Gid) -> usize {
        let waiting = self.arrived.iter();
        waiting.filter(|parcel| parcel.sender.gid == gid).count()
    }

    /// Takes out the packet of an adapter that has waited longest.
    pub(super) fn take_oldest_of(&mut self, gid: Gid) -> Option<Parcel> {
        let mut waiting = self.arrived.iter();
        let oldest = waiting.position(|parcel| parcel.sender.gid == gid)?;
        self.arrived.remove(oldest)
    }
}
