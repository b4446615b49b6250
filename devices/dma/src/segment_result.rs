//! A segment of a request, and its result: its route, its completer and its outcome.

use peerbar_dma_log::{Completer, Direction, DmaKind, Route};
use peerbar_pci::Iova;

use crate::error::DmaFault;
use crate::tag::Tag;

/// A segment of a request.
#[derive(Clone, Copy)]
pub(crate) struct DmaSegment {
    pub(crate) address: Iova,
    pub(crate) len: usize,
    pub(crate) direction: Direction,
    /// Its start time, by the clock of the flight recorder.
    pub(crate) started: u64,
}

/// The result of a segment of a request.
pub(crate) struct SegmentResult {
    pub(crate) route: Route,
    /// The owner of the memory that it reached, if any.
    pub(crate) completer: Completer,
    pub(crate) outcome: Result<(), DmaFault>,
}

impl SegmentResult {
    /// Makes the result of a segment that has gone nowhere, for this reason.
    pub(crate) fn refused(cause: DmaFault) -> Self {
        Self {
            route: Route::Refused,
            completer: Completer::None,
            outcome: Err(cause),
        }
    }

    /// Returns the kind under which it is counted.
    pub(crate) fn kind(&self, tag: Tag, direction: Direction) -> DmaKind {
        DmaKind {
            purpose: tag.purpose,
            route: self.route,
            completer: self.completer(),
            direction,
        }
    }

    /// Returns the owner of the accessed memory, or [`Completer::None`] after a failure.
    pub(crate) fn completer(&self) -> Completer {
        match self.outcome {
            Ok(()) => self.completer,
            Err(_) => Completer::None,
        }
    }
}
