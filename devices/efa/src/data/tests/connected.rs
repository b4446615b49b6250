//! Two queue pairs of an adapter, and memory that both may use.

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;

use super::fixture::{Adapter, PAYLOAD, Pair, Post};
use crate::objects::RegionKeys;

/// The second half of the memory at [`PAYLOAD`].
pub(super) const TO: u64 = PAYLOAD + (1 << 20);

pub(super) struct Connected {
    pub(super) adapter: Adapter,
    pub(super) a: Pair,
    pub(super) b: Pair,
    pub(super) handle: u16,
    /// The keys of a region of 2 MiB at [`PAYLOAD`].
    pub(super) keys: RegionKeys,
}

impl Connected {
    /// Makes two reliable queue pairs of a new adapter.
    pub(super) fn new() -> Self {
        let mut adapter = Adapter::new();
        let (a, b) = (adapter.reliable(), adapter.reliable());
        Self::of(adapter, a, b)
    }

    pub(super) fn of(adapter: Adapter, a: Pair, b: Pair) -> Self {
        let handle = adapter.handle();
        let keys = adapter.region(PAYLOAD, 2 << 20);
        Self {
            adapter,
            a,
            b,
            handle,
            keys,
        }
    }

    /// Returns a transfer between [`PAYLOAD`] here and [`TO`] at the second queue pair.
    pub(super) fn rdma(&self, operation: Operation, length: u32) -> Post {
        let (local, remote) = (self.keys.local, self.keys.remote);
        let (local, remote) = ((local, PAYLOAD, length), (remote, TO, length));
        Post::rdma(operation, &self.b, self.handle, local, remote)
    }

    /// Returns a send of the bytes at [`PAYLOAD`] to the second queue pair.
    pub(super) fn message(&self, length: u32) -> Post {
        let local = (self.keys.local, PAYLOAD, length);
        Post::send(&self.b, self.handle, &[local])
    }

    /// Posts a request to the first queue pair.
    pub(super) fn post(&mut self, post: &Post) {
        self.adapter.send(&mut self.a, post);
    }

    /// Returns the numbers and statuses of the first queue pair's new completions.
    pub(super) fn statuses(&mut self) -> Vec<(u16, CompletionStatus)> {
        self.adapter.statuses(&mut self.a)
    }
}
