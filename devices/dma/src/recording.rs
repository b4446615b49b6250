//! What the flight recorder is told, in its words.

use std::os::fd::AsFd;

use peerbar_dma_log::Direction;
use peerbar_flight::{
    Backing, Dma, Event, FileSpan, Mapping, Outcome, PeerWindow as PeerWindowRecord, Recorder,
    Window as WindowRecord, WindowId as RecordedId, WindowMemory as Recorded,
};

use crate::done::Done;
use crate::error::DmaFault;
use crate::peers::{PeerError, PeerId, PeerMemory, PeerWindow};
use crate::route::{Window, WindowId, WindowMemory};
use crate::tag::Tag;
use crate::upstream::UpstreamError;

/// A piece of a DMA that has come to an end.
pub(crate) fn dma(
    tag: Tag,
    direction: Direction,
    (address, len): (u64, usize),
    done: &Done,
) -> Dma {
    Dma {
        origin: tag.origin,
        purpose: tag.purpose,
        direction,
        address,
        len: len as u64,
        route: done.route,
        completer: done.met(),
        outcome: done.outcome.map_or_else(outcome, |()| Outcome::Done),
        took: 0,
    }
}

/// What came of a DMA that failed.
fn outcome(fault: DmaFault) -> Outcome {
    match fault {
        DmaFault::NotMaster => Outcome::NotMaster,
        DmaFault::OwnRegisters => Outcome::OwnRegisters,
        DmaFault::NoPage => Outcome::NoPage,
        DmaFault::Wraps => Outcome::Wraps,
        DmaFault::Upstream(UpstreamError::Refused(errno)) => {
            Outcome::ClientRefused(errno.try_into().unwrap_or(u16::MAX))
        }
        DmaFault::Upstream(UpstreamError::Gone) => Outcome::ClientGone,
        DmaFault::Upstream(UpstreamError::TimedOut) => Outcome::ClientTimedOut,
        DmaFault::Upstream(UpstreamError::Stopped) => Outcome::NotMaster,
        DmaFault::Peer(PeerError::Unsupported) => Outcome::PeerUnsupported,
        DmaFault::Peer(PeerError::Gone) => Outcome::PeerGone,
        DmaFault::Peer(PeerError::TimedOut) => Outcome::PeerTimedOut,
        DmaFault::Forbidden => Outcome::Forbidden,
        DmaFault::NoMemory => Outcome::NoMemory,
    }
}

/// Where in which file the memory is that the client lends. A file that cannot be asked for its number is number 0.
pub(crate) fn file_span(fd: impl AsFd, offset: u64) -> FileSpan {
    let stat = rustix::fs::fstat(fd).ok();
    FileSpan {
        device: stat.map_or(0, |stat| stat.st_dev),
        inode: stat.map_or(0, |stat| stat.st_ino),
        offset,
    }
}

/// A mapping that has been made.
pub(crate) fn map(
    (iova, size): (u64, u64),
    (readable, writable): (bool, bool),
    backing: Backing,
) -> Event {
    Event::Map(Mapping {
        iova,
        last: iova.saturating_add(size.saturating_sub(1)),
        readable,
        writable,
        backing,
    })
}

/// A window of the function's own, open or closed.
pub(crate) fn window(id: WindowId, window: Option<&Window>) -> Event {
    Event::Window(WindowRecord {
        id: match id {
            WindowId::Cmb => RecordedId::Cmb,
            WindowId::Bar(bar) => RecordedId::Bar(bar),
        },
        address: window.map_or(0, |window| window.address),
        size: window.map_or(0, |window| window.size),
        memory: match window.map(|window| &window.memory) {
            Some(WindowMemory::Span(_)) => Recorded::Memory,
            Some(WindowMemory::Pages(_)) => Recorded::Pages,
            Some(WindowMemory::Registers) => Recorded::Registers,
            None => Recorded::Gone,
        },
    })
}

/// All windows of a peer, in place of those of before.
pub(crate) fn peer(recorder: &Recorder, peer: PeerId, windows: &[PeerWindow]) {
    recorder.record(Event::PeerLeaves(peer.0));
    for window in windows {
        recorder.record(Event::PeerWindow(PeerWindowRecord {
            peer: peer.0,
            address: window.address,
            size: window.size,
            claim: window.claim,
            memory: match window.memory {
                PeerMemory::Span(_) => Recorded::Memory,
                PeerMemory::ByMessage => Recorded::Registers,
                PeerMemory::Gone => Recorded::Gone,
            },
        }));
    }
}
