//! The routes that bytes may take, and those that they took.

use std::sync::atomic::{AtomicU64, Ordering};

/// The routes that the bytes of a file may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Peer to peer, or not at all: other bytes are refused with the reason.
    #[default]
    PeerOnly,
    /// Peer to peer if possible, the rest through host memory.
    AllowBounce,
    /// All through host memory: shows the cost of the same program without peer to peer.
    BounceOnly,
}

/// Requested bytes of transfers, by route. The disk moves whole blocks, so its own counters show
/// more for the ends that bounce, and a block that is written in part is read, too.
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
