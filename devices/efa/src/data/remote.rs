//! Work requests to queue pairs of other adapters.

use std::time::{Duration, Instant};

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_fabric::{REQUEST_TIME_OUT, RequestError, SendError};
use zerocopy::IntoBytes;

use super::requester::{Requester, part_of, payload, tag, unreliable};
use super::responder::Payload;
use super::turn::Turn;
use super::wire::{Answer, Token};
use crate::objects::{Gid, Need, QueuePairKind};
use crate::work::job::{Job, PendingPacket, Sending, Step, Wait};
use crate::work::next_packet::{NextPacket, may_be_staged, next_packet};
use crate::work::packet::{self, PART_BYTES, Packet, Refusal, Verb};
use crate::work::request::Part;
use crate::work::staging::Slot;

/// Wait of a work request if too many requests to its destination are outstanding.
const BUSY_WAIT: Duration = Duration::from_millis(1);
/// Time for which a peer may have its maximum of requests in progress: each of them ends in half of
/// it.
const BUSY_TIME_OUT: Duration = REQUEST_TIME_OUT.saturating_mul(2);

/// An unanswered request to another adapter.
#[derive(Debug)]
pub(super) enum InFlight {
    /// A packet of a work request.
    Packet(SentPacket),
    /// A staging buffer.
    Buffer { gid: Gid, number: u32 },
}

/// An unanswered packet of a work request.
#[derive(Debug)]
pub(super) struct SentPacket {
    pair: u16,
    job: u64,
    pub(super) gid: Gid,
    pub(super) verb: Verb,
    /// The part of the transfer.
    pub(super) part: Part,
    /// The slot of its payload.
    pub(super) slot: Option<Slot>,
}

impl Turn<'_> {
    /// Sends the next packet of a work request to another adapter.
    pub(super) fn step_remote(&mut self, requester: &Requester, gid: Gid, job: &mut Job) -> Step {
        if requester.sender.kind == QueuePairKind::Datagram {
            let sent = self.send_datagram(requester, gid, job);
            return Step::Done(sent.map_or_else(unreliable, |()| CompletionStatus::Ok));
        }
        if let Sending::Failed(_) = job.remote.sending {
            return job.remote.ended();
        }
        job.remote.gid = Some(gid);
        if let Sending::Busy { packet, since } = std::mem::take(&mut job.remote.sending) {
            return self.send_packet(requester, gid, job, packet, since);
        }
        let stages = may_be_staged(&job.request) && self.stages(gid);
        let Some(next) = next_packet(job, stages) else {
            return job.remote.ended();
        };
        match self.pending_packet(requester, gid, job, next) {
            Ok(Some(packet)) => self.send_packet(requester, gid, job, packet, self.now),
            Ok(None) => {
                job.remote.sending = Sending::NeedsSlot;
                self.state.staging.add_waiter(requester.sender.pair, gid);
                Step::After(Wait::Answer)
            }
            Err(status) => job.remote.fail(status),
        }
    }

    fn send_datagram(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
    ) -> Result<(), CompletionStatus> {
        let whole = Part::whole(job.request.bytes);
        let data = self.packet(requester, job, (Verb::Message, whole))?;
        self.state.transfers.session.release();
        let wire = self.state.wire.get();
        let wire = wire.ok_or(CompletionStatus::LocalUnreachableRemote)?;
        let sent = wire.datagram(gid, &data);
        job.moved = job.request.bytes;
        self.count_sent(job.request.bytes);
        self.state.statistics.packet_bytes += u64::from(job.request.bytes);
        sent.map_err(|_| CompletionStatus::LocalUnreachableRemote)
    }

    /// Sends one packet of a work request, or keeps it until it can be sent. It could not be sent
    /// since `since`.
    fn send_packet(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
        packet: PendingPacket,
        since: Instant,
    ) -> Step {
        let token = Token(self.state.next_id());
        self.state.transfers.session.release();
        let wire = self.state.wire.get().ok_or(SendError::Lost);
        let sent = wire.and_then(|wire| wire.request(gid, &packet.data, Vec::new(), token));
        let Err(error) = sent else {
            self.note_sent(requester, gid, job, packet, token);
            return Step::Again;
        };
        let is_late = self.now.saturating_duration_since(since) >= BUSY_TIME_OUT;
        job.remote.fail(match error {
            SendError::Busy if !is_late => {
                job.remote.sending = Sending::Busy { packet, since };
                return Step::After(Wait::Until(self.now + BUSY_WAIT));
            }
            SendError::Busy => CompletionStatus::LocalUnresponsiveRemote,
            SendError::TooLong => CompletionStatus::LocalQueuePair,
            SendError::Lost => CompletionStatus::LocalUnreachableRemote,
        })
    }

    /// Notes a packet of a work request that was sent and expects an answer.
    fn note_sent(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
        packet: PendingPacket,
        token: Token,
    ) {
        let (verb, part) = (packet.verb, packet.part);
        let is_staged = packet.slot.is_some();
        let sent = SentPacket {
            pair: requester.sender.pair,
            job: job.id,
            gid,
            verb,
            part,
            slot: packet.slot,
        };
        self.state.sent.insert(token, InFlight::Packet(sent));
        job.remote.outstanding += 1;
        let before = job.remote.sent.unwrap_or(0);
        match verb {
            Verb::Announce | Verb::CountRead | Verb::CountWrite => job.remote.is_reported = true,
            _ => job.remote.sent = Some(before.max(part.offset + part.len)),
        }
        if verb == Verb::Write || verb == Verb::Message && job.not_ready == 0 {
            // A part that is sent again counts once.
            if part.offset >= before {
                self.count_sent(part.len);
            }
            let statistics = &mut self.state.statistics;
            match is_staged {
                true => statistics.staged_bytes += u64::from(part.len),
                false => statistics.packet_bytes += u64::from(part.len),
            }
        }
    }

    /// Returns the next packet of a work request, with its payload or the payload's slot, or `None`
    /// if it waits for a free slot.
    fn pending_packet(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &Job,
        next: NextPacket,
    ) -> Result<Option<PendingPacket>, CompletionStatus> {
        let NextPacket { verb, part, .. } = next;
        if next.is_staged {
            let Some(slot) = self.state.staging.take_slot(gid) else {
                return Ok(None);
            };
            let packet = self.staged_packet(requester, job, (verb, part), &slot)?;
            if let Some(data) = packet {
                let slot = Some(slot);
                return Ok(Some(PendingPacket {
                    verb,
                    part,
                    data,
                    slot,
                }));
            }
        }
        let part = part.at_most(PART_BYTES);
        let data = self.packet(requester, job, (verb, part))?;
        Ok(Some(PendingPacket {
            verb,
            part,
            data,
            slot: None,
        }))
    }

    /// Returns a packet that names a slot, and fills the slot with the payload of a write. Returns
    /// `None` if the slot cannot be used.
    fn staged_packet(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, Part),
        slot: &Slot,
    ) -> Result<Option<Vec<u8>>, CompletionStatus> {
        let header = Packet {
            is_staged: true,
            ..self.header(requester, job, (verb, part))?
        };
        let need = local_need(verb);
        let segments = self.local_segments(requester, &job.request, need, part)?;
        if verb == Verb::Write {
            let tag = tag(requester.sender.pair, job.number);
            let status = CompletionStatus::LocalInvalidKey;
            match self.put_into_slot(tag, &segments, &slot.memory, status) {
                Ok(()) => {}
                Err(Refusal::Status(status)) => return Err(status),
                Err(Refusal::NotStaged) => return Ok(None),
            }
        }
        Ok(Some(header.encode(slot.name.as_bytes())))
    }

    /// Returns the header of a packet. A transfer that does not fit moves nothing.
    fn header(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, Part),
    ) -> Result<Packet, CompletionStatus> {
        let request = &job.request;
        let need = local_need(verb);
        let is_first = part.offset == 0;
        let moves = matches!(verb, Verb::Message | Verb::Read | Verb::Write);
        if is_first && part.len < request.bytes && moves {
            self.local_segments(requester, request, need, Part::whole(request.bytes))?;
        }
        Ok(Packet {
            verb,
            source: requester.sender.pair,
            destination: request.destination,
            qkey: request.qkey,
            immediate: request.immediate,
            is_staged: false,
            part: part_of(request.remote, part),
            total: if is_first { request.bytes } else { part.len },
        })
    }

    /// Returns a packet of a work request, with its payload.
    fn packet(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, Part),
    ) -> Result<Vec<u8>, CompletionStatus> {
        let request = &job.request;
        let header = self.header(requester, job, (verb, part))?;
        let need = local_need(verb);
        let segments = self.local_segments(requester, request, need, part)?;
        let tag = tag(requester.sender.pair, job.number);
        let is_without = !matches!(verb, Verb::Message | Verb::Write);
        match payload(request, &segments, part) {
            _ if is_without => Ok(header.encode(&[])),
            Payload::Bytes(data) => Ok(header.encode(data)),
            Payload::Segments(segments) => {
                let data = self.state.transfers.read(tag, segments);
                let data = data.map_err(|_| CompletionStatus::LocalInvalidKey)?;
                Ok(header.encode(&data))
            }
        }
    }

    /// Takes the outcome of a packet of a work request.
    pub(super) fn take_answer(&mut self, sent: &SentPacket, answer: Answer) {
        if let Some(slot) = sent.slot.as_ref().filter(|_| answer.is_err()) {
            // Without an answer the other adapter may still use it.
            let staging = &mut self.state.staging;
            staging.give_up_buffer_of(sent.gid, slot, self.now);
        }
        let Ok(pair) = self.objects.queue_pairs.get_mut(sent.pair) else {
            return;
        };
        // The job is missing if its queue pair was reset or is in error.
        let Some((index, mut job)) = pair.jobs.take_one(sent.job) else {
            return;
        };
        job.remote.outstanding = job.remote.outstanding.saturating_sub(1);
        let step = match self.requester(sent.pair, &job) {
            Some(requester) => self.advance(&requester, &mut job, sent, answer),
            None => Step::Again,
        };
        match step {
            Step::After(wait) => self
                .objects
                .queue_pairs
                .put_back(sent.pair, index, job, wait),
            _ => self
                .objects
                .queue_pairs
                .put_back(sent.pair, index, job, Wait::Turn),
        }
        self.objects.queue_pairs.make_ready(sent.pair);
    }

    /// Applies an answer to its work request.
    fn advance(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &SentPacket,
        answer: Answer,
    ) -> Step {
        if matches!(answer, Err(RequestError::Gone | RequestError::TimedOut)) {
            self.state.statistics.unresponsive_remotes += 1;
        }
        let answer = answer.map_err(|error| match error {
            RequestError::Gone => CompletionStatus::LocalUnreachableRemote,
            RequestError::TimedOut => CompletionStatus::LocalUnresponsiveRemote,
            RequestError::Refused | RequestError::NoDescriptors => CompletionStatus::RemoteAbort,
        });
        let outcome = answer.map_err(Refusal::Status).and_then(|answer| {
            job.remote.is_counted |= packet::is_to_be_counted(&answer);
            let payload = packet::decode_answer(&answer)?;
            self.take_part(requester, job, sent, payload)
        });
        match (outcome, sent.verb) {
            (Ok(()), _) => Step::Again,
            (Err(Refusal::NotStaged), _) => match &sent.slot {
                Some(slot) => {
                    let staging = &mut self.state.staging;
                    staging.give_up_buffer_of(sent.gid, slot, self.now);
                    job.remote.again.push(sent.part);
                    Step::Again
                }
                None => job.remote.fail(CompletionStatus::RemoteBadStatus),
            },
            (
                Err(Refusal::Status(CompletionStatus::RemoteNotReady)),
                verb @ (Verb::Message | Verb::Announce),
            ) => {
                match verb {
                    Verb::Message => job.remote.sent = None,
                    _ => job.remote.is_reported = false,
                }
                match self.not_ready(requester, job) {
                    Step::Done(status) => job.remote.fail(status),
                    step => step,
                }
            }
            (Err(Refusal::Status(status)), _) => job.remote.fail(status),
        }
    }

    /// Handles an executed part: takes its payload, if it was a read.
    fn take_part(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &SentPacket,
        data: &[u8],
    ) -> Result<(), Refusal> {
        if sent.verb == Verb::Read {
            self.take_read(requester, job, sent, data)?;
        }
        job.moved = job.moved.saturating_add(sent.part.len);
        Ok(())
    }

    /// Takes the payload of a part of a read: from its slot, or otherwise from the answer.
    fn take_read(
        &mut self,
        requester: &Requester,
        job: &Job,
        sent: &SentPacket,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let segments = self.local_segments(requester, &job.request, Need::LocalWrite, sent.part)?;
        let tag = tag(requester.sender.pair, job.number);
        let status = CompletionStatus::LocalInvalidKey;
        match &sent.slot {
            Some(slot) => self.take_from_slot(tag, &slot.memory, &segments, status)?,
            None if data.len() as u64 == u64::from(sent.part.len) => {
                let written = self.state.transfers.write(tag, data, &segments);
                written.map_err(|_| status)?;
            }
            None => return Err(CompletionStatus::RemoteBadStatus.into()),
        }
        self.count_received(sent.part.len as usize);
        Ok(())
    }
}

/// Returns the use that a packet makes of its sender's memory.
fn local_need(verb: Verb) -> Need {
    match verb {
        Verb::Read => Need::LocalWrite,
        _ => Need::LocalRead,
    }
}
