//! Work requests to queue pairs of other adapters, and theirs to the queue pairs here.

use std::time::Duration;

use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use peerbar_fabric::{RequestError, SendError};

use super::job::{Job, Unsent, Wait};
use super::packet::{self, PART_BYTES, Packet, Verb};
use super::requester::{Requester, Step, part_of, payload, tag, unreliable};
use super::responder::{self, Payload, Sender};
use super::turn::Turn;
use super::wire::{Answer, Arrival, Token};
use crate::objects::{Gid, Need, QueuePairKind};

/// How many parts of one transfer are under way at most.
const PARTS: u16 = 8;
/// How long a work request waits if too many requests to its destination are under way.
const BUSY_WAIT: Duration = Duration::from_millis(1);
/// How many packets, and how many answers, are taken in one turn.
const MAIL: usize = 32;

/// An unanswered request to another adapter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pair: u16,
    job: u64,
    verb: Verb,
    /// The part of the transfer: where it starts, and its bytes.
    part: (u32, u32),
}

impl Turn<'_> {
    /// Sends the next packet of a work request to another adapter.
    pub(super) fn step_remote(&mut self, requester: &Requester, gid: Gid, job: &mut Job) -> Step {
        if requester.sender.kind == QueuePairKind::Datagram {
            let sent = self.send_datagram(requester, gid, job);
            return Step::Done(sent.map_or_else(unreliable, |()| CompletionStatus::Ok));
        }
        job.remote.gid = Some(gid);
        let next = match job.remote.unsent.take() {
            Some(unsent) => Ok(unsent),
            None => {
                let Some((verb, part)) = next_packet(job) else {
                    return ended(job);
                };
                let data = self.packet(requester, job, (verb, part));
                data.map(|data| Unsent { verb, part, data })
            }
        };
        match next {
            Ok(packet) => self.send_packet(requester, gid, job, packet),
            Err(status) => self.give_up(job, status),
        }
    }

    /// A work request has failed. It is over once its packets are answered: none of them does anything afterwards.
    pub(super) fn give_up(&self, job: &mut Job, status: CompletionStatus) -> Step {
        job.remote.unsent = None;
        job.remote.failure.get_or_insert(status);
        ended(job)
    }

    fn send_datagram(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
    ) -> Result<(), CompletionStatus> {
        let data = self.packet(requester, job, (Verb::Message, (0, job.request.bytes)))?;
        self.parts.transfers.session.release();
        let wire = self.parts.wire.get();
        let wire = wire.ok_or(CompletionStatus::LocalUnreachableRemote)?;
        let sent = wire.datagram(gid, &data);
        job.moved = job.request.bytes;
        self.count_sent(job.request.bytes);
        sent.map_err(|_| CompletionStatus::LocalUnreachableRemote)
    }

    /// Sends one packet of a work request, or keeps it until it can be sent.
    fn send_packet(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
        packet: Unsent,
    ) -> Step {
        let token = Token(self.parts.next_id());
        self.parts.transfers.session.release();
        let wire = self.parts.wire.get().ok_or(SendError::Lost);
        let sent = wire.and_then(|wire| wire.request(gid, &packet.data, token));
        match sent {
            Ok(()) => {}
            Err(SendError::Busy) => {
                job.remote.unsent = Some(packet);
                return Step::After(Wait::Until(self.now + BUSY_WAIT));
            }
            Err(SendError::Lost) => {
                return self.give_up(job, CompletionStatus::LocalUnreachableRemote);
            }
            Err(SendError::TooLong) => return self.give_up(job, CompletionStatus::LocalQueuePair),
        }
        let Unsent { verb, part, .. } = packet;
        let sent = Sent {
            pair: requester.sender.pair,
            job: job.id,
            verb,
            part,
        };
        self.parts.sent.insert(token, sent);
        job.remote.outstanding += 1;
        match verb {
            Verb::Announce => job.remote.is_announcing = true,
            _ => {
                job.remote.has_begun = true;
                job.remote.sent = part.0 + part.1;
            }
        }
        if verb == Verb::Write || verb == Verb::Message && job.not_ready == 0 {
            self.count_sent(part.1);
        }
        Step::Again
    }

    /// A packet of a work request, with its payload.
    fn packet(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, (u32, u32)),
    ) -> Result<Vec<u8>, CompletionStatus> {
        let request = &job.request;
        let need = if verb == Verb::Read {
            Need::LocalWrite
        } else {
            Need::LocalRead
        };
        let is_first = part.0 == 0;
        if is_first && part.1 < request.bytes && verb != Verb::Announce {
            // A transfer that does not fit moves nothing.
            self.local_places(requester, request, need, (0, request.bytes))?;
        }
        let places = self.local_places(requester, request, need, part)?;
        let header = Packet {
            verb,
            source: requester.sender.pair,
            destination: request.destination,
            qkey: request.qkey,
            immediate: request.immediate,
            part: part_of(request.remote, part),
            total: if is_first { request.bytes } else { part.1 },
        };
        let tag = tag(requester.sender.pair, job.number);
        let is_without = matches!(verb, Verb::Read | Verb::Announce);
        match payload(request, &places, part) {
            _ if is_without => Ok(header.encode(&[])),
            Payload::Bytes(data) => Ok(header.encode(data)),
            Payload::Places(places) => {
                let data = self.parts.transfers.read(tag, places);
                let data = data.map_err(|_| CompletionStatus::LocalInvalidKey)?;
                Ok(header.encode(&data))
            }
        }
    }

    /// Takes packets and answers of other adapters.
    pub(super) fn take_mail(&mut self) {
        for _ in 0..MAIL {
            let Some((token, answer)) = self.parts.mailbox.next_answer() else {
                break;
            };
            if let Some(sent) = self.parts.sent.remove(&token) {
                self.take_answer(&sent, answer);
            }
        }
        for _ in 0..MAIL {
            let Some(arrival) = self.parts.mailbox.next_arrival() else {
                break;
            };
            self.take_arrival(arrival);
        }
    }

    /// A request of a work request has its outcome.
    fn take_answer(&mut self, sent: &Sent, answer: Answer) {
        let Ok(pair) = self.objects.queue_pair_mut(sent.pair) else {
            return;
        };
        // It is not there if its queue pair was reset or is in error.
        let Some((index, mut job)) = pair.jobs.take_one(sent.job) else {
            return;
        };
        job.remote.outstanding = job.remote.outstanding.saturating_sub(1);
        let step = match self.requester(sent.pair, &job) {
            Some(requester) => self.advance(&requester, &mut job, sent, answer),
            None => Step::Again,
        };
        match step {
            Step::After(wait) => self.put_back(sent.pair, index, job, wait),
            _ => self.put_back(sent.pair, index, job, Wait::Turn),
        }
        self.parts.make_ready(sent.pair);
    }

    /// What an answer means for its work request.
    fn advance(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &Sent,
        answer: Answer,
    ) -> Step {
        if matches!(answer, Err(RequestError::Gone | RequestError::TimedOut)) {
            self.parts.statistics.unresponsive_remotes += 1;
        }
        let answer = answer.map_err(|error| match error {
            RequestError::Gone => CompletionStatus::LocalUnreachableRemote,
            RequestError::TimedOut => CompletionStatus::LocalUnresponsiveRemote,
            RequestError::Refused | RequestError::NoDescriptors => CompletionStatus::RemoteAbort,
        });
        let outcome = answer.and_then(|answer| {
            let (status, payload) = packet::decode_answer(&answer);
            match status {
                CompletionStatus::Ok => self.take_part(requester, job, sent, payload),
                status => Err(status),
            }
        });
        match (outcome, sent.verb) {
            (Ok(()), _) => Step::Again,
            (Err(CompletionStatus::RemoteNotReady), Verb::Message) => {
                job.remote.has_begun = false;
                self.not_ready_remote(requester, job)
            }
            (Err(CompletionStatus::RemoteNotReady), Verb::Announce) => {
                job.remote.is_announcing = false;
                self.not_ready_remote(requester, job)
            }
            (Err(status), _) => self.give_up(job, status),
        }
    }

    fn not_ready_remote(&self, requester: &Requester, job: &mut Job) -> Step {
        match self.not_ready(requester, job) {
            Step::Done(status) => self.give_up(job, status),
            step => step,
        }
    }

    /// A part has been carried out: takes its payload, if it was a read.
    fn take_part(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &Sent,
        data: &[u8],
    ) -> Result<(), CompletionStatus> {
        match sent.verb {
            Verb::Message => job.remote.is_received = true,
            Verb::Announce => job.remote.is_announced = true,
            Verb::Write => {}
            Verb::Read if data.len() as u64 != u64::from(sent.part.1) => {
                return Err(CompletionStatus::RemoteBadStatus);
            }
            Verb::Read => {
                let request = &job.request;
                let places = self.local_places(requester, request, Need::LocalWrite, sent.part)?;
                let tag = tag(requester.sender.pair, job.number);
                let written = self.parts.transfers.write(tag, data, &places);
                written.map_err(|_| CompletionStatus::LocalInvalidKey)?;
                self.count_received(data.len());
            }
        }
        job.moved = job.moved.saturating_add(sent.part.1);
        Ok(())
    }

    /// Carries out a packet of another adapter, and answers it if an answer is wanted.
    fn take_arrival(&mut self, arrival: Arrival) {
        let Arrival { from, data, reply } = arrival;
        let Some((packet, payload)) = Packet::decode(&data) else {
            return log::debug!("a packet of {from} makes no sense");
        };
        let kind = match reply {
            Some(_) => QueuePairKind::ReliableDatagram,
            None => QueuePairKind::Datagram,
        };
        if kind == QueuePairKind::Datagram && packet.verb != Verb::Message {
            return log::debug!("a datagram of {from} is no message");
        }
        let outcome = self.carry_out(&packet, from, kind, payload);
        self.parts.transfers.session.release();
        if let Some(reply) = reply {
            reply(outcome.unwrap_or_else(packet::answer));
        }
    }

    /// Carries out a packet. The answer, or the status of a failure.
    fn carry_out(
        &mut self,
        packet: &Packet,
        from: Gid,
        kind: QueuePairKind,
        data: &[u8],
    ) -> Result<Vec<u8>, CompletionStatus> {
        let sender = packet.sender(from, kind);
        let (to, payload) = (packet.destination, Payload::Bytes(data));
        let mut answer = packet::answer(CompletionStatus::Ok);
        match packet.verb {
            Verb::Message => self.receive_message(&sender, to, packet.immediate, payload)?,
            Verb::Announce => {
                let immediate = packet.immediate.unwrap_or(0);
                self.receive_immediate(&sender, to, immediate, packet.total)?;
            }
            Verb::Write => {
                self.check_remote_buffer(&sender, to, (packet.whole(), Need::RemoteWrite))?;
                self.write_memory(&sender, to, packet.part, payload)?;
            }
            Verb::Read => {
                self.check_remote_buffer(&sender, to, (packet.whole(), Need::RemoteRead))?;
                answer.extend(self.read_memory(packet, &sender, to)?);
            }
        }
        Ok(answer)
    }

    /// Reads a part of memory for another adapter.
    fn read_memory(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        to: u16,
    ) -> Result<Vec<u8>, CompletionStatus> {
        let places = self.remote_buffer(sender, to, (packet.part, Need::RemoteRead))?;
        let data = self.parts.transfers.read(responder::tag(to), &places);
        let data = data.map_err(|_| CompletionStatus::RemoteBadAddress)?;
        self.parts.statistics.read_response_bytes += data.len() as u64;
        self.count_sent(packet.part.bytes);
        Ok(data)
    }
}

/// The next packet of a work request. `None` if it waits for answers, or is over.
fn next_packet(job: &Job) -> Option<(Verb, (u32, u32))> {
    let (request, remote) = (&job.request, &job.remote);
    // The first part has the length of all: only once it has been carried out is it certain that the others may be.
    let limit = if job.moved == 0 { 1 } else { PARTS };
    if remote.failure.is_some() || remote.outstanding >= limit {
        return None;
    }
    let verb = match request.operation {
        Operation::Send => Verb::Message,
        Operation::RdmaRead => Verb::Read,
        Operation::RdmaWrite => Verb::Write,
    };
    if verb == Verb::Message {
        let is_due = !remote.has_begun && !remote.is_received;
        return is_due.then_some((verb, (0, request.bytes)));
    }
    // An empty transfer is one part, so that the other side checks it.
    if remote.sent < request.bytes || !remote.has_begun {
        let left = request.bytes.saturating_sub(remote.sent);
        return Some((verb, (remote.sent, left.min(PART_BYTES))));
    }
    let is_announced = request.immediate.is_none() || remote.is_announcing || remote.is_announced;
    let is_written = remote.outstanding == 0 && verb == Verb::Write;
    (is_written && !is_announced).then_some((Verb::Announce, (0, 0)))
}

/// What becomes of a work request that has nothing to send.
fn ended(job: &Job) -> Step {
    match job.remote.failure {
        _ if job.remote.outstanding > 0 => Step::After(Wait::Answer),
        Some(status) => Step::Done(status),
        None => Step::Done(CompletionStatus::Ok),
    }
}
