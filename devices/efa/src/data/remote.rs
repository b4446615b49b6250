//! Work requests to queue pairs of other adapters.

use std::time::Duration;

use peerbar_dma::Loan;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_fabric::{REQUEST_TIME_OUT, RequestError, SendError};

use super::job::{Job, Unsent, Wait};
use super::lending::MOST_SHOWS;
use super::next_packet::{NextPacket, next_packet};
use super::packet::{self, PART_BYTES, Packet, Refusal, Verb};
use super::requester::{Requester, Step, part_of, payload, tag, unreliable};
use super::responder::Payload;
use super::turn::Turn;
use super::wire::{Answer, Token};
use super::work_request::Part;
use crate::objects::{Gid, Need, QueuePairKind};

/// How long a work request waits if too many requests to its destination are under way.
const BUSY_WAIT: Duration = Duration::from_millis(1);
/// How long a peer may have as many requests in progress as it can: each of them ends in half of that.
const BUSY_TIME_OUT: Duration = REQUEST_TIME_OUT.saturating_mul(2);
/// How long a work request waits until its destination knows the files of its memory.
const SHOW_WAIT: Duration = Duration::from_millis(1);

/// An unanswered request to another adapter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent {
    /// A packet of a work request.
    Packet(SentPacket),
    /// A file that is going to be lent.
    File { gid: Gid, file: u32 },
}

/// A packet of a work request that is not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentPacket {
    pair: u16,
    job: u64,
    pub(super) gid: Gid,
    pub(super) verb: Verb,
    /// The part of the transfer.
    pub(super) part: Part,
    is_lent: bool,
    /// The loan of a write that is lent.
    loan: Option<u64>,
}

/// Why there is no packet now.
pub(super) enum NoPacket {
    Failed(CompletionStatus),
    /// The destination does not know the memory yet. It may have been shown some of it just now.
    NotShown {
        asked: bool,
    },
}

impl From<CompletionStatus> for NoPacket {
    fn from(status: CompletionStatus) -> Self {
        Self::Failed(status)
    }
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
                let lends = job.remote.shows < MOST_SHOWS && self.lends_to(gid);
                let Some(next) = next_packet(job, lends) else {
                    return ended(job);
                };
                self.unsent(requester, gid, job, next)
            }
        };
        match next {
            Ok(packet) => self.send_packet(requester, gid, job, packet),
            Err(NoPacket::Failed(status)) => self.give_up(job, status),
            Err(NoPacket::NotShown { asked }) => {
                job.remote.shows = job.remote.shows.saturating_add(asked.into());
                Step::After(Wait::Until(self.now + SHOW_WAIT))
            }
        }
    }

    /// A work request has failed. It is over once its packets are answered: none of them does anything afterwards.
    pub(super) fn give_up(&mut self, job: &mut Job, status: CompletionStatus) -> Step {
        let loan = job.remote.unsent.take().and_then(|unsent| unsent.loan);
        drop(loan.and_then(|loan| self.objects.take_loan(loan)));
        job.remote.failure.get_or_insert(status);
        ended(job)
    }

    fn send_datagram(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
    ) -> Result<(), CompletionStatus> {
        let whole = Part::whole(job.request.bytes);
        let data = self.packet(requester, job, (Verb::Message, whole), false)?;
        self.state.transfers.session.release();
        let wire = self.state.wire.get();
        let wire = wire.ok_or(CompletionStatus::LocalUnreachableRemote)?;
        let sent = wire.datagram(gid, &data);
        job.moved = job.request.bytes;
        self.count_sent(job.request.bytes);
        self.state.statistics.packet_bytes += u64::from(job.request.bytes);
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
        let token = Token(self.state.next_id());
        self.state.transfers.session.release();
        let wire = self.state.wire.get().ok_or(SendError::Lost);
        let sent = wire.and_then(|wire| wire.request(gid, &packet.data, Vec::new(), token));
        match sent {
            Ok(()) => job.remote.busy_since = None,
            Err(SendError::Busy) => {
                job.remote.unsent = Some(packet);
                let since = *job.remote.busy_since.get_or_insert(self.now);
                if self.now.saturating_duration_since(since) >= BUSY_TIME_OUT {
                    return self.give_up(job, CompletionStatus::LocalUnresponsiveRemote);
                }
                return Step::After(Wait::Until(self.now + BUSY_WAIT));
            }
            Err(error) => {
                job.remote.unsent = Some(packet);
                let status = match error {
                    SendError::TooLong => CompletionStatus::LocalQueuePair,
                    _ => CompletionStatus::LocalUnreachableRemote,
                };
                return self.give_up(job, status);
            }
        }
        self.note_sent(requester, gid, job, &packet, token);
        Step::Again
    }

    /// A packet of a work request has been sent and is to be answered.
    fn note_sent(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &mut Job,
        packet: &Unsent,
        token: Token,
    ) {
        let (verb, part) = (packet.verb, packet.part);
        let sent = SentPacket {
            pair: requester.sender.pair,
            job: job.id,
            gid,
            verb,
            part,
            is_lent: packet.is_lent,
            loan: packet.loan,
        };
        if packet.is_lent {
            job.remote.shows = 0;
        }
        self.state.sent.insert(token, Sent::Packet(sent));
        job.remote.outstanding += 1;
        match verb {
            Verb::Announce => job.remote.is_announcing = true,
            Verb::CountRead | Verb::CountWrite => job.remote.is_reported = true,
            Verb::Return => {}
            _ => {
                job.remote.has_begun = true;
                job.remote.sent = job.remote.sent.max(part.offset + part.len);
            }
        }
        if verb == Verb::Write || verb == Verb::Message && job.not_ready == 0 {
            self.count_sent(part.len);
            if !packet.is_lent {
                self.state.statistics.packet_bytes += u64::from(part.len);
            }
        }
    }

    /// The next packet of a work request, with its payload, or with the memory that is lent for it.
    fn unsent(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &Job,
        next: NextPacket,
    ) -> Result<Unsent, NoPacket> {
        let NextPacket { verb, part, .. } = next;
        if let Some(loan) = next.returned {
            return Ok(Unsent {
                verb,
                part,
                data: Packet::of_adapter(verb, loan, part.len).encode(&[]),
                is_lent: false,
                loan: None,
            });
        }
        if next.may_lend && verb == Verb::Read {
            return Ok(Unsent {
                verb,
                part,
                data: self.packet(requester, job, (verb, part), true)?,
                is_lent: true,
                loan: None,
            });
        }
        if next.may_lend {
            if let Some(unsent) = self.lent_write(requester, gid, job, part)? {
                return Ok(unsent);
            }
        }
        let part = part.at_most(PART_BYTES);
        Ok(Unsent {
            verb,
            part,
            data: self.packet(requester, job, (verb, part), false)?,
            is_lent: false,
            loan: None,
        })
    }

    /// The header of a packet. A transfer that does not fit moves nothing.
    pub(super) fn header(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, Part),
        is_lent: bool,
    ) -> Result<Packet, CompletionStatus> {
        let request = &job.request;
        let need = if verb == Verb::Read {
            Need::LocalWrite
        } else {
            Need::LocalRead
        };
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
            is_lent,
            part: part_of(request.remote, part),
            total: if is_first { request.bytes } else { part.len },
        })
    }

    /// A packet of a work request, with its payload.
    fn packet(
        &mut self,
        requester: &Requester,
        job: &Job,
        (verb, part): (Verb, Part),
        is_lent: bool,
    ) -> Result<Vec<u8>, CompletionStatus> {
        let request = &job.request;
        let header = self.header(requester, job, (verb, part), is_lent)?;
        let need = match verb {
            Verb::Read => Need::LocalWrite,
            _ => Need::LocalRead,
        };
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

    /// A request of a work request has its outcome.
    pub(super) fn take_answer(&mut self, sent: &SentPacket, answer: Answer) {
        let loan = sent.loan.and_then(|loan| self.objects.take_loan(loan));
        let Ok(pair) = self.objects.queue_pair_mut(sent.pair) else {
            return;
        };
        // It is not there if its queue pair was reset or is in error.
        let Some((index, mut job)) = pair.jobs.take_one(sent.job) else {
            return;
        };
        job.remote.outstanding = job.remote.outstanding.saturating_sub(1);
        let step = match self.requester(sent.pair, &job) {
            Some(requester) => self.advance(&requester, &mut job, sent, (answer, loan)),
            None => Step::Again,
        };
        match step {
            Step::After(wait) => self.put_back(sent.pair, index, job, wait),
            _ => self.put_back(sent.pair, index, job, Wait::Turn),
        }
        self.state.make_ready(sent.pair);
    }

    /// What an answer means for its work request.
    fn advance(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &SentPacket,
        (answer, loan): (Answer, Option<Loan>),
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
            if sent.is_lent {
                return self.take_lent(requester, job, sent, (payload, loan));
            }
            Ok(self.take_part(requester, job, sent, payload)?)
        });
        match (outcome, sent.verb) {
            (Ok(()), _) => Step::Again,
            (Err(refusal @ (Refusal::NotLent | Refusal::LoanOver)), _)
                if sent.is_lent || sent.verb == Verb::Return =>
            {
                if refusal == Refusal::NotLent {
                    self.state.lending.refused(sent.gid, self.now);
                }
                // A loan that was given back unread has no bytes.
                if sent.part.len > 0 {
                    job.remote.again.push(sent.part);
                }
                Step::Again
            }
            (Err(Refusal::NotLent | Refusal::LoanOver), _) => {
                self.give_up(job, CompletionStatus::RemoteBadStatus)
            }
            (Err(Refusal::Status(CompletionStatus::RemoteNotReady)), Verb::Message) => {
                job.remote.has_begun = false;
                self.not_ready_remote(requester, job)
            }
            (Err(Refusal::Status(CompletionStatus::RemoteNotReady)), Verb::Announce) => {
                job.remote.is_announcing = false;
                self.not_ready_remote(requester, job)
            }
            (Err(Refusal::Status(status)), _) => self.give_up(job, status),
        }
    }

    fn not_ready_remote(&mut self, requester: &Requester, job: &mut Job) -> Step {
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
        sent: &SentPacket,
        data: &[u8],
    ) -> Result<(), CompletionStatus> {
        match sent.verb {
            Verb::Message => job.remote.is_received = true,
            Verb::Announce => job.remote.is_announced = true,
            Verb::Write | Verb::Show | Verb::CountRead | Verb::CountWrite => {}
            Verb::Return => self.count_received(sent.part.len as usize),
            Verb::Read if data.len() as u64 != u64::from(sent.part.len) => {
                return Err(CompletionStatus::RemoteBadStatus);
            }
            Verb::Read => {
                let request = &job.request;
                let segments =
                    self.local_segments(requester, request, Need::LocalWrite, sent.part)?;
                let tag = tag(requester.sender.pair, job.number);
                let written = self.state.transfers.write(tag, data, &segments);
                written.map_err(|_| CompletionStatus::LocalInvalidKey)?;
                self.count_received(data.len());
            }
        }
        job.moved = job.moved.saturating_add(sent.part.len);
        Ok(())
    }
}

/// What becomes of a work request that has nothing to send.
fn ended(job: &Job) -> Step {
    match job.remote.failure {
        _ if job.remote.outstanding > 0 => Step::After(Wait::Answer),
        // What it was lent is given back first.
        Some(_) if !job.remote.returns.is_empty() => Step::Again,
        Some(status) => Step::Done(status),
        None => Step::Done(CompletionStatus::Ok),
    }
}
