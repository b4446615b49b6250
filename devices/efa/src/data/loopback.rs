//! Work requests to queue pairs of the same adapter.

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;

use super::requester::{Requester, payload};
use super::responder::Responder;
use super::transfers::Failure;
use crate::objects::{BusSegment, Need};
use crate::work::job::Job;
use crate::work::request::Part;

/// Number of bytes that a queue pair moves before the next one has its turn.
pub(super) const SLICE_BYTES: u32 = 256 << 10;

/// A work request to a queue pair of the same adapter, which is its own responder.
pub(super) struct Loopback<'a> {
    pub(super) requester: &'a Requester,
    pub(super) job: &'a mut Job,
    pub(super) responder: Responder<'a>,
}

impl Loopback<'_> {
    /// Moves the next part. Returns `true` if the request is done.
    pub(super) fn step(&mut self) -> Result<bool, CompletionStatus> {
        match self.job.request.operation {
            Operation::Send => self.send_message(),
            Operation::RdmaRead => self.read(),
            Operation::RdmaWrite => self.write(),
            // They have no data.
            Operation::FastRegister | Operation::FastInvalidate => Ok(true),
        }
    }

    fn segments(&self, need: Need, part: Part) -> Result<Vec<BusSegment>, CompletionStatus> {
        let regions = &self.responder.objects.regions;
        self.requester
            .segments(regions, &self.job.request, need, part)
    }

    fn send_message(&mut self) -> Result<bool, CompletionStatus> {
        let request = &self.job.request;
        let whole = Part::whole(request.bytes);
        let segments = self.segments(Need::LocalRead, whole)?;
        let payload = payload(request, &segments, whole);
        if self.job.not_ready == 0 {
            let statistics = &mut self.responder.local.statistics;
            statistics.count_sent(request.bytes);
        }
        let immediate = request.immediate;
        self.responder.receive_message(immediate, payload)?;
        self.job.moved = request.bytes;
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, CompletionStatus> {
        let request = &self.job.request;
        let Some(left @ 1..) = request.bytes.checked_sub(self.job.moved) else {
            return self.announce_write();
        };
        let part = Part::new(self.job.moved, left.min(SLICE_BYTES));
        if part.len < left && self.job.moved == 0 {
            // A write that does not fit writes nothing.
            self.segments(Need::LocalRead, Part::whole(request.bytes))?;
            self.responder
                .check_remote_buffer(request.remote, Need::RemoteWrite)?;
        }
        let segments = self.segments(Need::LocalRead, part)?;
        let payload = payload(request, &segments, part);
        let remote = request.remote.part(part);
        self.responder.write_memory(remote, payload)?;
        self.responder.local.statistics.count_sent(part.len);
        self.job.moved += part.len;
        if self.job.moved < self.job.request.bytes {
            return Ok(false);
        }
        self.announce_write()
    }

    /// Announces a complete RDMA write if it has immediate data.
    fn announce_write(&mut self) -> Result<bool, CompletionStatus> {
        let request = &self.job.request;
        if request.bytes == 0 {
            self.responder
                .remote_buffer(request.remote, Need::RemoteWrite)?;
        }
        if let Some(immediate) = request.immediate {
            self.responder.receive_immediate(immediate, request.bytes)?;
        }
        Ok(true)
    }

    fn read(&mut self) -> Result<bool, CompletionStatus> {
        let request = &self.job.request;
        let left = request.bytes.saturating_sub(self.job.moved);
        let part = Part::new(self.job.moved, left.min(SLICE_BYTES));
        if part.len < left && self.job.moved == 0 {
            // A read that does not fit reads nothing.
            self.segments(Need::LocalWrite, Part::whole(request.bytes))?;
            self.responder
                .check_remote_buffer(request.remote, Need::RemoteRead)?;
        }
        let to = self.segments(Need::LocalWrite, part)?;
        let from = request.remote.part(part);
        let from = self.responder.remote_buffer(from, Need::RemoteRead)?;
        let local = &mut self.responder.local;
        let failure = Failure {
            source: CompletionStatus::RemoteBadAddress,
            destination: CompletionStatus::LocalInvalidKey,
        };
        local
            .transfers
            .copy(self.requester.tag(), &from, &to, failure)?;
        local.statistics.read_response_bytes += u64::from(part.len);
        local.statistics.count_sent(part.len);
        local.statistics.count_received(part.len as usize);
        self.job.moved += part.len;
        Ok(self.job.moved >= self.job.request.bytes)
    }
}
