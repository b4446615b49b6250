//! The requester side of a queue pair, which executes the work requests of its send queue.

use std::time::Duration;

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{LONG_SEND_ENTRY_BYTES, Operation};

use super::arrivals::STAGED_IN_A_TURN;
use super::responder::{Payload, Sender};
use super::transfers::TransferError;
use super::turn::Turn;
use crate::objects::{
    BusSegment, DroppedRequest, ENDLESS_RNR_RETRY, Need, QueuePairEvent, QueuePairKind,
    QueuePairState,
};
use crate::work::job::{Job, Step, Wait};
use crate::work::request::{BadRequest, Buffer, Data, Part, WorkRequest};

/// Number of bytes that a queue pair moves before the next one has its turn.
const SLICE_BYTES: u32 = 256 << 10;
/// Limit of the work requests that it executes in its turn.
const SLICE_REQUESTS: usize = 32;
/// Wait before a message is sent again to a queue pair that has no receive.
const NOT_READY_WAIT: Duration = Duration::from_millis(10);

/// The requester of a work request.
#[derive(Clone, Copy)]
pub(super) struct Requester {
    pub(super) sender: Sender,
    pub(super) protection_domain: u16,
    pub(super) rnr_retry: u8,
}

impl Turn<'_> {
    /// Executes work requests of a queue pair for a while. Returns `true` if it has more to do now.
    pub(super) fn serve(&mut self, number: u16) -> bool {
        let Ok(pair) = self.objects.queue_pairs.get(number) else {
            return false;
        };
        match pair.state {
            QueuePairState::ReadyToSend => self.send(number, true),
            QueuePairState::SendQueueDrained => self.send(number, false),
            QueuePairState::Error => self.flush(number),
            _ => false,
        }
    }

    /// Ends, in the flight record, the work requests that were dropped with their queue pairs, or
    /// by a reset.
    pub(super) fn end_dropped(&mut self) {
        let requester = self.state.transfers.session.requester();
        for DroppedRequest { pair, request } in self.objects.queue_pairs.take_dropped() {
            let status = u16::from(CompletionStatus::Flushed as u8);
            requester
                .ledger()
                .end(Origin::command(pair, request), status);
        }
    }

    /// Executes requests in progress and, if `fetches` is set, posted requests.
    fn send(&mut self, number: u16, fetches: bool) -> bool {
        let mut bytes = 0u32;
        for _ in 0..SLICE_REQUESTS {
            if fetches {
                self.fetch(number);
            }
            let Some((index, mut job)) = self.next_job(number) else {
                return false;
            };
            let before = job.moved;
            let step = self.step(number, &mut job);
            bytes = bytes.saturating_add(job.moved.saturating_sub(before));
            match step {
                Step::Done(status) => self.finish(number, &job, status),
                Step::Again => self
                    .objects
                    .queue_pairs
                    .put_back(number, index, job, Wait::Turn),
                Step::After(wait) => self.objects.queue_pairs.put_back(number, index, job, wait),
            }
            if bytes >= SLICE_BYTES || self.state.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
        true
    }

    /// Takes the next work request to continue.
    fn next_job(&mut self, number: u16) -> Option<(usize, Job)> {
        let order = self.state.order.as_mut();
        let pair = self.objects.queue_pairs.get_mut(number).ok()?;
        let order = order.filter(|_| pair.kind == QueuePairKind::ReliableDatagram);
        let choose =
            |count| order.map_or(0, |order| if count > 1 { order.usize(..count) } else { 0 });
        pair.jobs.take(self.now, choose)
    }

    /// Takes work requests out of the send queue, up to the limit of those in progress.
    fn fetch(&mut self, number: u16) {
        loop {
            let Ok(pair) = self.objects.queue_pairs.get(number) else {
                return;
            };
            if pair.jobs.is_full(pair.send.entries()) {
                // A wrong doorbell is detected even while no more requests may begin.
                if pair.send.peek(0).is_err() {
                    self.objects.queue_pairs.fail(number);
                }
                return;
            }
            match self.take_entry(number) {
                Ok(None) => return,
                Ok(Some((taken, request))) => {
                    let id = self.state.next_id();
                    let job = match request {
                        Ok(request) => Job::new(request, id, taken),
                        Err(bad) => Job::refused(&bad, id, taken),
                    };
                    let origin = Origin::command(number, taken);
                    let requester = self.state.transfers.session.requester();
                    requester
                        .ledger()
                        .begin(origin, job.request.operation as u8);
                    if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
                        pair.jobs.add(job);
                    }
                }
                Err(BadSendQueue) => return self.objects.queue_pairs.fail(number),
            }
        }
    }

    /// Takes one entry out of the send queue. It is read once.
    #[expect(clippy::type_complexity, reason = "a number and its kind")]
    fn take_entry(
        &mut self,
        number: u16,
    ) -> Result<Option<(u16, Result<WorkRequest, BadRequest>)>, BadSendQueue> {
        let pair = self.objects.queue_pairs.get_mut(number);
        let pair = pair.map_err(|_| BadSendQueue)?;
        let Some(offset) = pair.send.peek(0).map_err(|_| BadSendQueue)? else {
            return Ok(None);
        };
        let mut entry = [0; LONG_SEND_ENTRY_BYTES];
        let entry = entry.get_mut(..pair.send.entry_bytes).ok_or(BadSendQueue)?;
        let read = self.state.bar_memory.read(offset, entry);
        read.map_err(|_| BadSendQueue)?;
        let taken = pair.send.taken();
        pair.send.advance(1);
        Ok(Some((taken, WorkRequest::parse(entry))))
    }

    /// Executes a step of a work request.
    fn step(&mut self, number: u16, job: &mut Job) -> Step {
        if let Some(status) = job.refusal {
            return Step::Done(status);
        }
        let Some(requester) = self.requester(number, job) else {
            return Step::Done(CompletionStatus::Flushed);
        };
        match job.request.data {
            Data::Register(registration) => {
                let status = self.register(&requester, job.number, &registration);
                return Step::Done(status);
            }
            Data::Invalidate(key) => return Step::Done(self.invalidate(&requester, key)),
            Data::Inline(_) | Data::Buffers(_) => {}
        }
        let is_rdma = job.request.operation != Operation::Send;
        if is_rdma && requester.sender.kind == QueuePairKind::Datagram {
            return Step::Done(CompletionStatus::LocalUnsupportedOperation);
        }
        let domain = requester.protection_domain;
        // A transfer continues to the adapter where it began, even if its handle leads elsewhere by
        // now.
        let handle = job.request.address_handle;
        let gid = job
            .remote
            .gid
            .or_else(|| self.objects.address_handles.gid(handle, domain));
        let Some(gid) = gid else {
            return job.remote.fail(CompletionStatus::LocalInvalidAddressHandle);
        };
        if gid != self.state.gid {
            return self.step_remote(&requester, gid, job);
        }
        let done = match job.request.operation {
            Operation::Send => self.send_message(&requester, job),
            Operation::RdmaRead => self.read(&requester, job),
            Operation::RdmaWrite => self.write(&requester, job),
            // They have no data.
            Operation::FastRegister | Operation::FastInvalidate => Ok(true),
        };
        match done {
            Ok(true) => {
                let (to, operation) = (job.request.destination, job.request.operation);
                self.count_event(to, QueuePairEvent::Remote(operation));
                Step::Done(CompletionStatus::Ok)
            }
            Ok(false) => Step::Again,
            Err(CompletionStatus::RemoteNotReady) => self.not_ready(&requester, job),
            Err(status) if requester.sender.kind == QueuePairKind::Datagram => {
                Step::Done(unreliable(status))
            }
            Err(status) => Step::Done(status),
        }
    }

    /// Returns the requester of a work request.
    pub(super) fn requester(&self, number: u16, job: &Job) -> Option<Requester> {
        let pair = self.objects.queue_pairs.get(number).ok()?;
        Some(Requester {
            sender: Sender {
                gid: self.state.gid,
                pair: number,
                kind: pair.kind,
                qkey: job.request.qkey,
            },
            protection_domain: pair.protection_domain,
            rnr_retry: pair.rnr_retry,
        })
    }

    /// Handles a destination without a receive. A datagram is lost in this case.
    pub(super) fn not_ready(&self, requester: &Requester, job: &mut Job) -> Step {
        if requester.sender.kind == QueuePairKind::Datagram {
            return Step::Done(CompletionStatus::Ok);
        }
        let is_endless = requester.rnr_retry == ENDLESS_RNR_RETRY;
        if !is_endless && job.not_ready >= requester.rnr_retry {
            return Step::Done(CompletionStatus::RemoteNotReady);
        }
        job.not_ready = job.not_ready.saturating_add(1);
        Step::After(Wait::Until(self.now + NOT_READY_WAIT))
    }

    /// Sends a message. Returns `true` if it is done.
    fn send_message(
        &mut self,
        requester: &Requester,
        job: &mut Job,
    ) -> Result<bool, CompletionStatus> {
        let request = &job.request;
        let whole = Part::whole(request.bytes);
        let segments = self.local_segments(requester, request, Need::LocalRead, whole)?;
        let payload = payload(request, &segments, whole);
        let (destination, immediate) = (request.destination, request.immediate);
        if job.not_ready == 0 {
            self.count_sent(request.bytes);
        }
        self.receive_message(&requester.sender, destination, immediate, payload)?;
        job.moved = request.bytes;
        Ok(true)
    }

    /// Writes the next part of an RDMA write. Returns `true` if the write is done.
    fn write(&mut self, requester: &Requester, job: &mut Job) -> Result<bool, CompletionStatus> {
        let request = &job.request;
        let (sender, destination) = (&requester.sender, request.destination);
        let Some(left @ 1..) = request.bytes.checked_sub(job.moved) else {
            return self.announce_write(requester, request);
        };
        let part = Part::new(job.moved, left.min(SLICE_BYTES));
        if part.len < left && job.moved == 0 {
            // A write that does not fit writes nothing.
            let whole = Part::whole(request.bytes);
            self.local_segments(requester, request, Need::LocalRead, whole)?;
            let whole = (request.remote, Need::RemoteWrite);
            self.check_remote_buffer(sender, destination, whole)?;
        }
        let segments = self.local_segments(requester, request, Need::LocalRead, part)?;
        let payload = payload(request, &segments, part);
        self.write_memory(sender, destination, part_of(request.remote, part), payload)?;
        self.count_sent(part.len);
        job.moved += part.len;
        if job.moved < request.bytes {
            return Ok(false);
        }
        self.announce_write(requester, request)
    }

    /// Announces a complete RDMA write if it has immediate data.
    fn announce_write(
        &mut self,
        requester: &Requester,
        request: &WorkRequest,
    ) -> Result<bool, CompletionStatus> {
        let (sender, destination) = (&requester.sender, request.destination);
        if request.bytes == 0 {
            self.remote_buffer(sender, destination, (request.remote, Need::RemoteWrite))?;
        }
        if let Some(immediate) = request.immediate {
            self.receive_immediate(sender, destination, immediate, request.bytes)?;
        }
        Ok(true)
    }

    /// Reads the next part of an RDMA read. Returns `true` if the read is done.
    fn read(&mut self, requester: &Requester, job: &mut Job) -> Result<bool, CompletionStatus> {
        let request = &job.request;
        let (sender, destination) = (&requester.sender, request.destination);
        let left = request.bytes.saturating_sub(job.moved);
        let part = Part::new(job.moved, left.min(SLICE_BYTES));
        if part.len < left && job.moved == 0 {
            // A read that does not fit reads nothing.
            let whole = Part::whole(request.bytes);
            self.local_segments(requester, request, Need::LocalWrite, whole)?;
            let whole = (request.remote, Need::RemoteRead);
            self.check_remote_buffer(sender, destination, whole)?;
        }
        let to = self.local_segments(requester, request, Need::LocalWrite, part)?;
        let from = (part_of(request.remote, part), Need::RemoteRead);
        let from = self.remote_buffer(sender, destination, from)?;
        let tag = tag(requester.sender.pair, job.number);
        let copied = self.state.transfers.copy(tag, &from, &to);
        copied.map_err(|error| match error {
            TransferError::Source => CompletionStatus::RemoteBadAddress,
            TransferError::Destination => CompletionStatus::LocalInvalidKey,
        })?;
        self.state.statistics.read_response_bytes += u64::from(part.len);
        self.count_sent(part.len);
        self.count_received(part.len as usize);
        job.moved += part.len;
        Ok(job.moved >= request.bytes)
    }

    /// Returns the memory of a part of a work request's own buffers.
    pub(super) fn local_segments(
        &self,
        requester: &Requester,
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
            let part = part_of(*buffer, Part::new(skipped, bytes));
            let domain = requester.protection_domain;
            self.objects
                .regions
                .buffer(domain, part, need, &mut segments)
                .map_err(|error| {
                    log::debug!("queue pair {}: {error}", requester.sender.pair);
                    CompletionStatus::LocalInvalidKey
                })?;
        }
        Ok(segments)
    }

    /// Ends a work request.
    pub(super) fn finish(&mut self, number: u16, job: &Job, status: CompletionStatus) {
        let request = &job.request;
        let origin = Origin::command(number, job.number);
        let requester = self.state.transfers.session.requester();
        requester.ledger().end(origin, u16::from(status as u8));
        let is_ok = status == CompletionStatus::Ok;
        if is_ok {
            self.count_done(request);
        } else if status != CompletionStatus::Flushed {
            self.count_error(request.operation);
        }
        let id = (request.id, request.is_signalled);
        self.end_send(number, id, request.operation, status);
    }

    /// Flushes the requests that are posted or in progress on a queue pair in error. Returns `true`
    /// if there may be more.
    fn flush(&mut self, number: u16) -> bool {
        let more_sends = self.flush_sends(number, SLICE_REQUESTS);
        let more_receives = self.flush_receives(number, SLICE_REQUESTS);
        more_sends || more_receives
    }

    fn flush_sends(&mut self, number: u16, limit: usize) -> bool {
        if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
            let jobs = pair.jobs.take_all();
            for job in jobs {
                self.finish(number, &job, CompletionStatus::Flushed);
            }
        }
        for _ in 0..limit {
            let (id, operation) = match self.take_entry(number) {
                Ok(Some((_, Ok(request)))) => (request.id, request.operation),
                Ok(Some((_, Err(bad)))) => (bad.id, bad.operation),
                Ok(None) => return false,
                Err(BadSendQueue) => {
                    if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
                        pair.send.discard();
                    }
                    return false;
                }
            };
            self.end_send(number, (id, true), operation, CompletionStatus::Flushed);
        }
        true
    }

    pub(super) fn count_sent(&mut self, bytes: u32) {
        self.state.statistics.sent_packets += 1;
        self.state.statistics.sent_bytes += u64::from(bytes);
    }

    fn count_done(&mut self, request: &WorkRequest) {
        let statistics = &mut self.state.statistics;
        let (requests, bytes) = match request.operation {
            Operation::Send => (&mut statistics.sends, &mut statistics.send_bytes),
            Operation::RdmaRead => (&mut statistics.reads, &mut statistics.read_bytes),
            Operation::RdmaWrite => (&mut statistics.writes, &mut statistics.write_bytes),
            Operation::FastRegister | Operation::FastInvalidate => return,
        };
        *requests += 1;
        *bytes += u64::from(request.bytes);
    }

    fn count_error(&mut self, operation: Operation) {
        let statistics = &mut self.state.statistics;
        match operation {
            Operation::Send | Operation::FastRegister | Operation::FastInvalidate => {}
            Operation::RdmaRead => statistics.read_errors += 1,
            Operation::RdmaWrite => statistics.write_errors += 1,
        }
    }
}

/// A send queue whose doorbell is beyond its entries, or that cannot be read.
#[derive(Debug)]
struct BadSendQueue;

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
        Data::Register(_) | Data::Invalidate(_) => Payload::Bytes(&[]),
        Data::Inline(data) => {
            let (offset, len) = (part.offset as usize, part.len as usize);
            let data = data.get(offset..).unwrap_or_default();
            Payload::Bytes(data.get(..len).unwrap_or(data))
        }
    }
}

/// Returns a part of a buffer.
pub(super) fn part_of(buffer: Buffer, part: Part) -> Buffer {
    Buffer {
        address: buffer.address.wrapping_add(u64::from(part.offset)),
        bytes: part.len,
        ..buffer
    }
}

pub(super) fn tag(pair: u16, command: u16) -> Tag {
    Tag::new(Purpose::Payload, Origin::command(pair, command))
}
