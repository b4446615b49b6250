//! Converts events to those of the flight recorder.

use peerbar_flight::{
    Backing, Dma, DmaOutcome, Event, Mapping, PeerWindowEvent, Recorder, WindowEvent, WindowId,
    WindowKind,
};

use peerbar_pci::{Iova, Range};

use crate::error::DmaFault;
use crate::map_access::MapAccess;
use crate::peers::{PeerError, PeerId, PeerMemory, PeerWindow};
use crate::route::{OwnWindow, OwnWindowMemory};
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;
use crate::upstream::UpstreamError;

/// Returns the event of a segment of a DMA that has ended.
pub(crate) fn dma(tag: Tag, segment: DmaSegment, result: &SegmentResult) -> Dma {
    Dma {
        origin: tag.origin,
        purpose: tag.purpose,
        direction: segment.direction,
        address: segment.address,
        len: segment.len as u64,
        route: result.route,
        completer: result.completer(),
        outcome: result.outcome.map_or_else(outcome, |()| DmaOutcome::Done),
        took: 0,
    }
}

/// The error that a client that serves DMA would return (errno(3)).
const EFAULT: u16 = 14;

/// Returns the outcome of a failed DMA.
fn outcome(fault: DmaFault) -> DmaOutcome {
    match fault {
        DmaFault::NotMaster => DmaOutcome::NotMaster,
        DmaFault::OwnRegisters => DmaOutcome::OwnRegisters,
        DmaFault::NoPage => DmaOutcome::NoPage,
        DmaFault::Wraps => DmaOutcome::Wraps,
        DmaFault::Unaligned => DmaOutcome::Unaligned,
        DmaFault::Upstream(UpstreamError::Refused(errno)) => {
            DmaOutcome::ClientRefused(errno.try_into().unwrap_or(u16::MAX))
        }
        DmaFault::Upstream(UpstreamError::Gone) => DmaOutcome::ClientGone,
        DmaFault::Upstream(UpstreamError::Unserved) => DmaOutcome::ClientRefused(EFAULT),
        DmaFault::Upstream(UpstreamError::TimedOut) => DmaOutcome::ClientTimedOut,
        DmaFault::Upstream(UpstreamError::Stopped) => DmaOutcome::NotMaster,
        DmaFault::Peer(PeerError::Unsupported) => DmaOutcome::PeerUnsupported,
        DmaFault::Peer(PeerError::Gone) => DmaOutcome::PeerGone,
        // Only a whole request fails this way, after its segments have been recorded.
        DmaFault::LinkBusy | DmaFault::Peer(PeerError::TimedOut) => DmaOutcome::PeerTimedOut,
        DmaFault::Forbidden => DmaOutcome::Forbidden,
        DmaFault::NoMemory => DmaOutcome::NoMemory,
        DmaFault::Injected => DmaOutcome::Injected,
    }
}

/// Returns the event of a new mapping.
pub(crate) fn map(range: Range<Iova>, access: MapAccess, backing: Backing) -> Event {
    Event::Map(Mapping {
        range,
        readable: access.readable,
        writable: access.writable,
        backing,
    })
}

/// Returns the event of one of the function's own windows, open or closed.
pub(crate) fn window(id: WindowId, window: Option<&OwnWindow>) -> Event {
    Event::Window(WindowEvent {
        id,
        range: window.map(|window| window.range),
        memory: match window.map(|window| &window.memory) {
            Some(OwnWindowMemory::Span(_)) => WindowKind::Memory,
            Some(OwnWindowMemory::Pages(_)) => WindowKind::Pages,
            Some(OwnWindowMemory::Registers) => WindowKind::Registers,
            None => WindowKind::Gone,
        },
    })
}

/// Records all windows of a peer, which replace the previous ones.
pub(crate) fn peer(recorder: &Recorder, peer: PeerId, windows: &[PeerWindow]) {
    recorder.record(Event::PeerLeaves(peer.0));
    for window in windows {
        recorder.record(Event::PeerWindow(PeerWindowEvent {
            peer: peer.0,
            range: window.range,
            claim: window.claim,
            memory: match window.memory {
                PeerMemory::Span(_) => WindowKind::Memory,
                PeerMemory::ByMessage => WindowKind::Registers,
                PeerMemory::Gone => WindowKind::Gone,
            },
        }));
    }
}
