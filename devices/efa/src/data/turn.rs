//! A turn of the worker, which holds the lock of the objects.

use std::time::Instant;

use super::completions::CompletionWriter;
use super::local::Local;
use super::peers::Peers;
use super::remote::RemoteRequest;
use super::requester::Requester;
use crate::objects::{Gid, Objects};
use crate::work::job::Job;

/// Number of bytes copied from or to slots after which a turn ends.
pub(super) const STAGED_IN_A_TURN: u64 = 1 << 20;

/// A turn.
pub(super) struct Turn<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) local: &'a mut Local,
    pub(super) peers: &'a mut Peers,
    /// Takes work requests of a queue pair out of their order, if set.
    pub(super) order: Option<&'a mut fastrand::Rng>,
    pub(super) now: Instant,
}

impl Turn<'_> {
    pub(super) fn completions(&mut self) -> CompletionWriter<'_> {
        CompletionWriter {
            objects: self.objects,
            local: self.local,
        }
    }

    /// Returns a work request to that adapter.
    pub(super) fn remote<'a>(
        &'a mut self,
        requester: &'a Requester,
        gid: Gid,
        job: &'a mut Job,
    ) -> RemoteRequest<'a> {
        RemoteRequest {
            requester,
            gid,
            job,
            regions: &self.objects.regions,
            local: self.local,
            peers: self.peers,
            now: self.now,
        }
    }
}
