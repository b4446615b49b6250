//! The requester of a work request: the queue pair that has posted it.

use std::time::{Duration, Instant};

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_efa_spec::completion::CompletionStatus;

use super::responder::Sender;
use super::transfers::Payload;
use crate::objects::{
    BusSegment, ENDLESS_RNR_RETRY, Gid, MemoryRegions, Need, QueuePair, QueuePairKind,
};
use crate::work::job::{Job, Step, Wait};
use crate::work::request::{Data, Part, WorkRequest};

/// Wait before a message is sent again to a queue pair that has no receive.
const NOT_READY_WAIT: Duration = Duration::from_millis(10);

/// The requester of a work request.
#[derive(Clone, Copy)]
pub(super) struct Requester {
    pub(super) sender: Sender,
    pub(super) protection_domain: u16,
    rnr_retry: u8,
    /// Number of the request at its queue pair.
    request: u16,
}

impl Requester {
    /// Returns the requester of a job of this queue pair, at the adapter of that address.
    pub(super) fn new(gid: Gid, pair: &QueuePair, job: &Job) -> Self {
        Self {
            sender: Sender {
                gid,
                pair: pair.number,
                kind: pair.kind,
                qkey: job.request.qkey,
            },
            protection_domain: pair.protection_domain,
            rnr_retry: pair.rnr_retry,
            request: job.number,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.sender.kind == QueuePairKind::Datagram
    }

    /// Returns the work request as the origin of DMA.
    pub(super) fn origin(&self) -> Origin {
        Origin::command(self.sender.pair, self.request)
    }

    pub(super) fn tag(&self) -> Tag {
        Tag::new(Purpose::Payload, self.origin())
    }

    /// Handles a destination without a receive. A datagram is lost in this case.
    pub(super) fn not_ready(&self, job: &mut Job, now: Instant) -> Step {
        if self.is_datagram() {
            return Step::Done(CompletionStatus::Ok);
        }
        let is_endless = self.rnr_retry == ENDLESS_RNR_RETRY;
        if !is_endless && job.not_ready >= self.rnr_retry {
            return Step::Done(CompletionStatus::RemoteNotReady);
        }
        job.not_ready = job.not_ready.saturating_add(1);
        Step::After(Wait::Until(now + NOT_READY_WAIT))
    }

    /// Returns the memory of a part of the request's own buffers.
    pub(super) fn segments(
        &self,
        regions: &MemoryRegions,
        request: &WorkRequest,
        need: Need,
        part: Part,
    ) -> Result<Vec<BusSegment>, CompletionStatus> {
        let Part {
            offset: mut skip,
            len: mut left,
        } = part;
        let mut segments = Vec::new();
        let Data::Buffers(buffers) = &request.data else {
            return Ok(segments);
        };
        for buffer in buffers {
            let skipped = skip.min(buffer.bytes);
            let bytes = left.min(buffer.bytes - skipped);
            skip -= skipped;
            left -= bytes;
            let part = buffer.part(Part::new(skipped, bytes));
            regions
                .buffer(self.protection_domain, part, need, &mut segments)
                .map_err(|error| {
                    log::debug!("queue pair {}: {error}", self.sender.pair);
                    CompletionStatus::LocalInvalidKey
                })?;
        }
        Ok(segments)
    }
}

/// Returns the status that the sender of a datagram sees: it learns nothing about events behind its
/// adapter.
pub(super) fn unreliable(status: CompletionStatus) -> CompletionStatus {
    match status {
        CompletionStatus::LocalInvalidKey
        | CompletionStatus::LocalInvalidAddressHandle
        | CompletionStatus::LocalBadLength
        | CompletionStatus::LocalUnsupportedOperation
        | CompletionStatus::LocalQueuePair => status,
        _ => CompletionStatus::Ok,
    }
}

/// Returns a part of the data of a work request: the segments' content, or the inline data from its
/// offset on.
pub(super) fn payload<'a>(
    request: &'a WorkRequest,
    segments: &'a [BusSegment],
    part: Part,
) -> Payload<'a> {
    match &request.data {
        Data::Buffers(_) => Payload::Segments(segments),
        Data::Register(_) | Data::Invalidate(_) | Data::Refused(_) => Payload::Bytes(&[]),
        Data::Inline(data) => {
            let (offset, len) = (part.offset as usize, part.len as usize);
            let data = data.get(offset..).unwrap_or_default();
            Payload::Bytes(data.get(..len).unwrap_or(data))
        }
    }
}
