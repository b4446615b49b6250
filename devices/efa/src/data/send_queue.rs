//! Executes the work requests of a queue pair's send queue.

use peerbar_dma::Origin;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{LONG_SEND_ENTRY_BYTES, Operation};

use super::fast_regions::{invalidate, register};
use super::loopback::{Loopback, SLICE_BYTES};
use super::receive_queue::ReceiveQueue;
use super::requester::{Requester, unreliable};
use super::responder::Responder;
use super::turn::{STAGED_IN_A_TURN, Turn};
use crate::objects::{DroppedRequest, QueuePairKind, QueuePairState};
use crate::work::job::{Job, Step, Wait};
use crate::work::request::{Data, WorkRequest};

/// Limit of the work requests that a queue pair executes in its turn.
const SLICE_REQUESTS: usize = 32;
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
        let requester = self.local.transfers.session.requester();
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
            let pairs = &mut self.objects.queue_pairs;
            match step {
                Step::Done(status) => self.finish(number, &job, status),
                Step::Again => pairs.put_back(number, index, job, Wait::Turn),
                Step::After(wait) => pairs.put_back(number, index, job, wait),
            }
            if bytes >= SLICE_BYTES || self.local.transfers.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
        true
    }

    /// Takes the next work request to continue.
    fn next_job(&mut self, number: u16) -> Option<(usize, Job)> {
        let order = self.order.as_deref_mut();
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
                    let id = self.peers.next_id();
                    let job = Job::new(request, id, taken);
                    let origin = Origin::command(number, taken);
                    let requester = self.local.transfers.session.requester();
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

    /// Takes one entry out of the send queue, and returns it with its number. It is read once.
    fn take_entry(&mut self, number: u16) -> Result<Option<(u16, WorkRequest)>, BadSendQueue> {
        let pair = self.objects.queue_pairs.get_mut(number);
        let pair = pair.map_err(|_| BadSendQueue)?;
        let Some(offset) = pair.send.peek(0).map_err(|_| BadSendQueue)? else {
            return Ok(None);
        };
        let mut entry = [0; LONG_SEND_ENTRY_BYTES];
        let entry = entry.get_mut(..pair.send.entry_bytes).ok_or(BadSendQueue)?;
        let read = self.objects.bar_memory.read(offset, entry);
        read.map_err(|_| BadSendQueue)?;
        let taken = pair.send.taken();
        pair.send.advance(1);
        Ok(Some((taken, WorkRequest::parse(entry))))
    }

    /// Executes a step of a work request.
    fn step(&mut self, number: u16, job: &mut Job) -> Step {
        let Ok(pair) = self.objects.queue_pairs.get(number) else {
            return Step::Done(CompletionStatus::Flushed);
        };
        let requester = &Requester::new(self.local.gid, pair, job);
        let domain = requester.protection_domain;
        let status = match &job.request.data {
            Data::Register(registration) => {
                let session = &mut self.local.transfers.session;
                register(&mut self.objects.regions, session, requester, registration)
            }
            Data::Invalidate(key) => invalidate(&mut self.objects.regions, domain, *key),
            Data::Refused(status) => *status,
            Data::Inline(_) | Data::Buffers(_) => return self.transfer(requester, job),
        };
        Step::Done(status)
    }

    /// Executes a step of a work request that moves data.
    fn transfer(&mut self, requester: &Requester, job: &mut Job) -> Step {
        let operation = job.request.operation;
        if operation != Operation::Send && requester.is_datagram() {
            return Step::Done(CompletionStatus::LocalUnsupportedOperation);
        }
        // A transfer continues to the adapter where it began, even if its handle leads elsewhere by
        // now.
        let (handle, domain) = (job.request.address_handle, requester.protection_domain);
        let handles = &self.objects.address_handles;
        let gid = job.remote.gid.or_else(|| handles.gid(handle, domain));
        let Some(gid) = gid else {
            return job.remote.fail(CompletionStatus::LocalInvalidAddressHandle);
        };
        if gid != self.local.gid {
            return self.remote(requester, gid, job).step();
        }
        let mut loopback = Loopback {
            requester,
            responder: Responder {
                objects: self.objects,
                local: self.local,
                sender: requester.sender,
                pair: job.request.destination,
            },
            job,
        };
        match loopback.step() {
            Ok(true) => {
                loopback.responder.count_done(operation);
                Step::Done(CompletionStatus::Ok)
            }
            Ok(false) => Step::Again,
            Err(CompletionStatus::RemoteNotReady) => requester.not_ready(job, self.now),
            Err(status) if requester.is_datagram() => Step::Done(unreliable(status)),
            Err(status) => Step::Done(status),
        }
    }

    /// Ends a work request.
    fn finish(&mut self, number: u16, job: &Job, status: CompletionStatus) {
        let request = &job.request;
        let origin = Origin::command(number, job.number);
        let requester = self.local.transfers.session.requester();
        requester.ledger().end(origin, u16::from(status as u8));
        self.local.statistics.count_end(request, status);
        self.completions().end_send(number, request, status);
    }

    /// Flushes the requests that are posted or in progress on a queue pair in error. Returns `true`
    /// if there may be more.
    fn flush(&mut self, number: u16) -> bool {
        let more_sends = self.flush_sends(number, SLICE_REQUESTS);
        let mut receives = ReceiveQueue {
            objects: self.objects,
            local: self.local,
            pair: number,
        };
        let more_receives = receives.flush(SLICE_REQUESTS);
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
            let request = match self.take_entry(number) {
                Ok(Some((_, request))) => request,
                Ok(None) => return false,
                Err(BadSendQueue) => {
                    if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
                        pair.send.discard();
                    }
                    return false;
                }
            };
            let status = CompletionStatus::Flushed;
            self.completions().end_send(number, &request, status);
        }
        true
    }
}

/// A send queue whose doorbell is beyond its entries, or that cannot be read.
#[derive(Debug)]
struct BadSendQueue;
