//! The routes that bytes may take, and those that they took.

use std::sync::atomic::{AtomicU64, Ordering};

/// The routes that the bytes of a file may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Peer to peer, or not at all: what cannot is refused with the reason.
    #[default]
    PeerOnly,
    /// Peer to peer where it can, the rest through host memory.
    AllowBounce,
    /// All through host memory: what the same program costs without peer to peer.
    BounceOnly,
}

/// Bytes of transfers, by the way that they took: those that were asked for. The disk moves whole blocks, so for the ends
/// that bounce its own counters show more, and a block that is written in part is read, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Straight between the disk and GPU memory.
    pub peer_bytes: u64,
    /// Through host memory.
    pub bounced_bytes: u64,
}

/// Counts of one file, from all threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    peer: AtomicU64,
    bounced: AtomicU64,
}

impl Counters {
    pub(crate) fn peer(&self, bytes: u64) {
        self.peer.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bounced(&self, bytes: u64) {
        self.bounced.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            peer_bytes: self.peer.load(Ordering::Relaxed),
            bounced_bytes: self.bounced.load(Ordering::Relaxed),
        }
    }
}
