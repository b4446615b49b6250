//! The result of a segment of a request: its route, its completer and its outcome.

use peerbar_dma_log::{Completer, Direction, DmaKind, Route};

use crate::buffer::Buffer;
use crate::error::DmaFault;
use crate::peers::PeerError;
use crate::tag::Tag;

/// The result of a segment of a request.
pub(crate) struct SegmentResult {
    pub(crate) route: Route,
    /// The owner of the memory that it met, if it met any.
    pub(crate) completer: Completer,
    pub(crate) outcome: Result<(), DmaFault>,
}

impl SegmentResult {
    /// The kind that it is counted as.
    pub(crate) fn kind(&self, tag: Tag, direction: Direction) -> DmaKind {
        DmaKind {
            purpose: tag.purpose,
            route: self.route,
            completer: self.completer(),
            direction,
        }
    }

    /// The owner of the memory that was met: nobody if it failed.
    pub(crate) fn completer(&self) -> Completer {
        match self.outcome {
            Ok(()) => self.completer,
            Err(_) => Completer::Nobody,
        }
    }

    /// Refused: no memory was met.
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

    /// Direct peer to peer.
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

    /// A request that the switch loses: the requester believes a write done, and a read ends as a completion time-out.
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
