//! Work requests to queue pairs of other adapters.

use std::time::{Duration, Instant};

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_fabric::{REQUEST_TIME_OUT, RequestError, SendError};
use zerocopy::IntoBytes;

use super::local::Local;
use super::peers::{InFlight, Peers, SentPacket};
use super::requester::{Requester, payload, unreliable};
use super::transfers::Payload;
use super::wire::{Answer, Token};
use crate::objects::{BusSegment, Gid, MemoryRegions, Need};
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

/// A work request to another adapter.
pub(super) struct RemoteRequest<'a> {
    pub(super) requester: &'a Requester,
    pub(super) gid: Gid,
    pub(super) job: &'a mut Job,
    pub(super) regions: &'a MemoryRegions,
    pub(super) local: &'a mut Local,
    pub(super) peers: &'a mut Peers,
    pub(super) now: Instant,
}

impl RemoteRequest<'_> {
    /// Sends its next packet.
    pub(super) fn step(&mut self) -> Step {
        if self.requester.is_datagram() {
            let sent = self.send_datagram();
            return Step::Done(sent.map_or_else(unreliable, |()| CompletionStatus::Ok));
        }
        let remote = &mut self.job.remote;
        if let Sending::Failed(_) = remote.sending {
            return remote.ended();
        }
        remote.gid = Some(self.gid);
        if let Sending::Busy { packet, since } = std::mem::take(&mut remote.sending) {
            return self.send_packet(packet, since);
        }
        let session = &mut self.local.transfers.session;
        let stages =
            may_be_staged(&self.job.request) && self.peers.stages(self.gid, session, self.now);
        let Some(next) = next_packet(self.job, stages) else {
            return self.job.remote.ended();
        };
        match self.pending_packet(next) {
            Ok(Some(packet)) => self.send_packet(packet, self.now),
            Ok(None) => {
                self.job.remote.sending = Sending::NeedsSlot;
                let pair = self.requester.sender.pair;
                self.peers.staging.add_waiter(pair, self.gid);
                Step::After(Wait::Answer)
            }
            Err(status) => self.job.remote.fail(status),
        }
    }

    fn send_datagram(&mut self) -> Result<(), CompletionStatus> {
        let bytes = self.job.request.bytes;
        let data = self.packet(Verb::Message, Part::whole(bytes))?;
        self.local.transfers.session.release();
        let wire = self.peers.wire.get();
        let wire = wire.ok_or(CompletionStatus::LocalUnreachableRemote)?;
        let sent = wire.datagram(self.gid, &data);
        self.job.moved = bytes;
        self.local.statistics.count_sent(bytes);
        self.local.statistics.packet_bytes += u64::from(bytes);
        sent.map_err(|_| CompletionStatus::LocalUnreachableRemote)
    }

    /// Sends a packet, or keeps it until it can be sent. It could not be sent since `since`.
    fn send_packet(&mut self, packet: PendingPacket, since: Instant) -> Step {
        self.local.transfers.session.release();
        let error = match self.peers.request(self.gid, &packet.data, Vec::new()) {
            Ok(token) => {
                self.note_sent(packet, token);
                return Step::Again;
            }
            Err(error) => error,
        };
        let is_late = self.now.saturating_duration_since(since) >= BUSY_TIME_OUT;
        self.job.remote.fail(match error {
            SendError::Busy if !is_late => {
                self.job.remote.sending = Sending::Busy { packet, since };
                return Step::After(Wait::Until(self.now + BUSY_WAIT));
            }
            SendError::Busy => CompletionStatus::LocalUnresponsiveRemote,
            SendError::TooLong => CompletionStatus::LocalQueuePair,
            SendError::Lost => CompletionStatus::LocalUnreachableRemote,
        })
    }

    /// Notes a packet that was sent and expects an answer.
    fn note_sent(&mut self, packet: PendingPacket, token: Token) {
        let (verb, part) = (packet.verb, packet.part);
        let is_staged = packet.slot.is_some();
        let sent = SentPacket {
            pair: self.requester.sender.pair,
            job: self.job.id,
            gid: self.gid,
            verb,
            part,
            slot: packet.slot,
        };
        self.peers.in_flight.insert(token, InFlight::Packet(sent));
        let remote = &mut self.job.remote;
        remote.outstanding += 1;
        let before = remote.sent.unwrap_or(0);
        match verb {
            Verb::Announce | Verb::CountRead | Verb::CountWrite => remote.is_reported = true,
            _ => remote.sent = Some(before.max(part.offset + part.len)),
        }
        if verb == Verb::Write || verb == Verb::Message && self.job.not_ready == 0 {
            let statistics = &mut self.local.statistics;
            // A part that is sent again counts once.
            if part.offset >= before {
                statistics.count_sent(part.len);
            }
            match is_staged {
                true => statistics.staged_bytes += u64::from(part.len),
                false => statistics.packet_bytes += u64::from(part.len),
            }
        }
    }

    /// Returns the next packet, with its payload or the payload's slot, or `None` if it waits for a
    /// free slot.
    fn pending_packet(
        &mut self,
        next: NextPacket,
    ) -> Result<Option<PendingPacket>, CompletionStatus> {
        let NextPacket { verb, part, .. } = next;
        if next.is_staged {
            let Some(slot) = self.peers.staging.take_slot(self.gid) else {
                return Ok(None);
            };
            if let Some(data) = self.staged_packet(verb, part, &slot)? {
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
        let data = self.packet(verb, part)?;
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
        verb: Verb,
        part: Part,
        slot: &Slot,
    ) -> Result<Option<Vec<u8>>, CompletionStatus> {
        let header = Packet {
            is_staged: true,
            ..self.header(verb, part)?
        };
        let segments = self.segments(verb, part)?;
        if verb == Verb::Write {
            let (tag, status) = (self.requester.tag(), CompletionStatus::LocalInvalidKey);
            let transfers = &mut self.local.transfers;
            match transfers.put_into(tag, &segments, &slot.memory, status) {
                Ok(()) => {}
                Err(Refusal::Status(status)) => return Err(status),
                Err(Refusal::NotStaged) => return Ok(None),
            }
        }
        Ok(Some(header.encode(slot.name.as_bytes())))
    }

    /// Returns the header of a packet. A transfer that does not fit moves nothing.
    fn header(&self, verb: Verb, part: Part) -> Result<Packet, CompletionStatus> {
        let request = &self.job.request;
        let is_first = part.offset == 0;
        let moves = matches!(verb, Verb::Message | Verb::Read | Verb::Write);
        if is_first && part.len < request.bytes && moves {
            self.segments(verb, Part::whole(request.bytes))?;
        }
        Ok(Packet {
            verb,
            source: self.requester.sender.pair,
            destination: request.destination,
            qkey: request.qkey,
            immediate: request.immediate,
            is_staged: false,
            part: request.remote.part(part),
            total: if is_first { request.bytes } else { part.len },
        })
    }

    /// Returns a packet with its payload.
    fn packet(&mut self, verb: Verb, part: Part) -> Result<Vec<u8>, CompletionStatus> {
        let header = self.header(verb, part)?;
        let segments = self.segments(verb, part)?;
        let is_without = !matches!(verb, Verb::Message | Verb::Write);
        match payload(&self.job.request, &segments, part) {
            _ if is_without => Ok(header.encode(&[])),
            Payload::Bytes(data) => Ok(header.encode(data)),
            Payload::Segments(segments) => {
                let (tag, status) = (self.requester.tag(), CompletionStatus::LocalInvalidKey);
                let data = self.local.transfers.read(tag, segments, status)?;
                Ok(header.encode(&data))
            }
        }
    }

    /// Returns the local memory of a part, which a packet reads or, for a read, writes.
    fn segments(&self, verb: Verb, part: Part) -> Result<Vec<BusSegment>, CompletionStatus> {
        let need = match verb {
            Verb::Read => Need::LocalWrite,
            _ => Need::LocalRead,
        };
        self.requester
            .segments(self.regions, &self.job.request, need, part)
    }

    /// Applies the answer to one of its packets.
    pub(super) fn take_answer(&mut self, sent: &SentPacket, answer: Answer) -> Step {
        self.job.remote.outstanding = self.job.remote.outstanding.saturating_sub(1);
        if matches!(answer, Err(RequestError::Gone | RequestError::TimedOut)) {
            self.local.statistics.unresponsive_remotes += 1;
        }
        let answer = answer.map_err(|error| match error {
            RequestError::Gone => CompletionStatus::LocalUnreachableRemote,
            RequestError::TimedOut => CompletionStatus::LocalUnresponsiveRemote,
            RequestError::Refused | RequestError::NoDescriptors => CompletionStatus::RemoteAbort,
        });
        let outcome = answer.map_err(Refusal::Status).and_then(|answer| {
            self.job.remote.is_counted |= packet::is_to_be_counted(&answer);
            let data = packet::decode_answer(&answer)?;
            if sent.verb == Verb::Read {
                self.take_read(sent, data)?;
            }
            self.job.moved = self.job.moved.saturating_add(sent.part.len);
            Ok(())
        });
        match (outcome, sent.verb) {
            (Ok(()), _) => Step::Again,
            (Err(Refusal::NotStaged), _) => self.send_again(sent),
            (Err(Refusal::Status(CompletionStatus::RemoteNotReady)), Verb::Message) => {
                self.job.remote.sent = None;
                self.not_ready()
            }
            (Err(Refusal::Status(CompletionStatus::RemoteNotReady)), Verb::Announce) => {
                self.job.remote.is_reported = false;
                self.not_ready()
            }
            (Err(Refusal::Status(status)), _) => self.job.remote.fail(status),
        }
    }

    /// Sends a part in packets, since its slot could not be used.
    fn send_again(&mut self, sent: &SentPacket) -> Step {
        let Some(slot) = &sent.slot else {
            return self.job.remote.fail(CompletionStatus::RemoteBadStatus);
        };
        let staging = &mut self.peers.staging;
        staging.give_up(self.gid, slot.name.buffer(), self.now);
        self.job.remote.again.push(sent.part);
        Step::Again
    }

    fn not_ready(&mut self) -> Step {
        match self.requester.not_ready(self.job, self.now) {
            Step::Done(status) => self.job.remote.fail(status),
            step => step,
        }
    }

    /// Takes the payload of a part of a read: from its slot, or otherwise from the answer.
    fn take_read(&mut self, sent: &SentPacket, data: &[u8]) -> Result<(), Refusal> {
        let segments = self.segments(sent.verb, sent.part)?;
        let (tag, status) = (self.requester.tag(), CompletionStatus::LocalInvalidKey);
        let transfers = &mut self.local.transfers;
        match &sent.slot {
            Some(slot) => transfers.take_from(tag, &slot.memory, &segments, status)?,
            None if data.len() as u64 == u64::from(sent.part.len) => {
                transfers.write(tag, data, &segments, status)?;
            }
            None => return Err(CompletionStatus::RemoteBadStatus.into()),
        }
        let statistics = &mut self.local.statistics;
        statistics.count_received(sent.part.len as usize);
        Ok(())
    }
}
