//! What came of a piece of a request: which way it went, whose memory it met, and whether that went well.

use peerbar_dma_log::{Completer, Direction, DmaKind, Route};

use crate::buffer::Buffer;
use crate::error::DmaFault;
use crate::peers::PeerError;
use crate::tag::Tag;

/// What came of a piece of a request.
pub(crate) struct Done {
    pub(crate) route: Route,
    /// Who owns the memory that it met, if it met any.
    pub(crate) completer: Completer,
    pub(crate) outcome: Result<(), DmaFault>,
}

impl Done {
    /// What it was and which way it went.
    pub(crate) fn kind(&self, tag: Tag, direction: Direction) -> DmaKind {
        DmaKind {
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

    /// It went nowhere.
    pub(crate) fn refused(fault: DmaFault) -> Self {
        Self {
            route: Route::Refused,
            completer: Completer::Nobody,
            outcome: Err(fault),
        }
    }

    /// It met the function's own memory.
    pub(crate) fn own(outcome: Result<(), DmaFault>) -> Self {
        Self {
            route: Route::OwnBar,
            completer: Completer::OwnMemory,
            outcome,
        }
    }

    /// It went straight to a peer.
    pub(crate) fn to_peer(outcome: Result<(), DmaFault>) -> Self {
        Self {
            route: Route::Peer,
            completer: Completer::PeerBar,
            outcome,
        }
    }

    /// It met the guest's RAM.
    pub(crate) fn in_ram(outcome: Result<(), DmaFault>) -> Self {
        Self {
            route: Route::GuestRam,
            completer: Completer::GuestRam,
            outcome,
        }
    }

    /// The client was asked for it.
    pub(crate) fn upstream(completer: Completer, outcome: Result<(), DmaFault>) -> Self {
        Self {
            route: Route::Upstream,
            completer,
            outcome,
        }
    }

    /// A request that the switch loses: nobody tells the requester of a write, and what it reads it gives up waiting for.
    pub(crate) fn dropped(part: &Buffer<'_>) -> Self {
        Self {
            route: Route::Refused,
            completer: Completer::Nobody,
            outcome: match part {
                Buffer::Write(_) => Ok(()),
                Buffer::Read(_) => Err(DmaFault::Peer(PeerError::TimedOut)),
            },
        }
    }
}
