//! Parts of transfers whose memory is lent, at its lender and where it is copied.

use std::os::fd::OwnedFd;

use peerbar_dma::{Loan, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use zerocopy::FromBytes;

use super::job::{Job, Unsent};
use super::lending::{MOST_SHOWS, Shown};
use super::packet::{self, LentPart, Packet, Refusal, ShownLease, Verb};
use super::remote::{NoPacket, SentPacket};
use super::requester::{Requester, tag};
use super::responder::{self, Sender};
use super::transfers::{LentError, TransferError, total};
use super::turn::Turn;
use super::work_request::{Data, Part};
use crate::objects::{BusSegment, Gid, Need, QueuePairKind};

impl Turn<'_> {
    /// A part of a write whose memory is lent. `None` if it cannot be lent.
    pub(super) fn lent_write(
        &mut self,
        requester: &Requester,
        gid: Gid,
        job: &Job,
        part: Part,
    ) -> Result<Option<Unsent>, NoPacket> {
        let request = &job.request;
        let header = self.header(requester, job, (Verb::Write, part), true)?;
        let segments = self.local_segments(requester, request, Need::LocalRead, part)?;
        let tag = tag(requester.sender.pair, job.number);
        let Some(words) = self.state.lending.words(gid, self.now) else {
            return Ok(None);
        };
        let Some(loan) = self.state.transfers.lend(tag, &segments, &words.words) else {
            return Ok(None);
        };
        let Some(ranges) = self.state.lending.ranges(&loan) else {
            return Ok(None);
        };
        match self.show(gid, &loan, &words) {
            Shown::Known => {}
            Shown::Asked => return Err(NoPacket::NotShown { asked: true }),
            Shown::Pending | Shown::Busy => return Err(NoPacket::NotShown { asked: false }),
            Shown::Refused => return Ok(None),
        }
        let lent = LentPart {
            word: (words.number, loan.id()),
            ranges,
        };
        let number = self.state.next_id();
        let keys = match &request.data {
            Data::Buffers(buffers) => buffers.iter().map(|buffer| buffer.key).collect(),
            Data::Inline(_) | Data::Register(_) | Data::Invalidate(_) => Vec::new(),
        };
        let owner = (requester.sender.pair, Need::LocalRead);
        self.objects.hold_loan(number, loan, owner, keys);
        Ok(Some(Unsent {
            verb: Verb::Write,
            part,
            data: header.encode(&lent.encode()),
            is_lent: true,
            loan: Some(number),
        }))
    }

    /// A part whose memory was lent has been carried out, as the other side says. What it was worth, the lender says.
    pub(super) fn take_lent(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &SentPacket,
        (payload, loan): (&[u8], Option<Loan>),
    ) -> Result<(), Refusal> {
        if sent.verb == Verb::Read {
            return self.take_lent_read(requester, job, sent, payload);
        }
        // It is not there if its memory region is gone, and then the packets find that out.
        let ended = loan.ok_or(Refusal::LoanOver)?.end();
        ended.map_err(|_| Refusal::LoanOver)?;
        self.state.statistics.lent_bytes += u64::from(sent.part.len);
        job.moved = job.moved.saturating_add(sent.part.len);
        Ok(())
    }

    /// Copies what is lent to a read, and has the loan given back in any case.
    fn take_lent_read(
        &mut self,
        requester: &Requester,
        job: &mut Job,
        sent: &SentPacket,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let lent = packet::decode_lent(payload, sent.part.len);
        let (loan, lent) = lent.ok_or(CompletionStatus::RemoteBadStatus)?;
        let copied = self.copy_read(requester, job, sent, &lent);
        let bytes = if copied.is_ok() { sent.part.len } else { 0 };
        let part = sent.part.at_most(bytes);
        job.remote.returns.push((part, loan));
        // A lender that gets it back unread shows its memory again.
        copied.map_err(|refusal| match refusal {
            Refusal::NotLent => Refusal::LoanOver,
            other => other,
        })
    }

    fn copy_read(
        &mut self,
        requester: &Requester,
        job: &Job,
        sent: &SentPacket,
        lent: &LentPart,
    ) -> Result<(), Refusal> {
        let segments = self.local_segments(requester, &job.request, Need::LocalWrite, sent.part)?;
        let tag = tag(requester.sender.pair, job.number);
        let status = CompletionStatus::LocalInvalidKey;
        self.copy_lent(tag, (sent.gid, lent), &segments, status)
    }

    /// Copies memory that another adapter lends. The status is that of a destination that cannot be written.
    fn copy_lent(
        &mut self,
        tag: Tag,
        (from, lent): (Gid, &LentPart),
        to: &[BusSegment],
        status: CompletionStatus,
    ) -> Result<(), Refusal> {
        let borrowed = self.state.lending.borrowed(from, lent);
        let (loan, spans) = borrowed.ok_or(Refusal::NotLent)?;
        let bytes = total(to) as u64;
        let copied = self.state.transfers.copy_lent(tag, (&loan, &spans), to);
        self.state.transfers.session.release();
        self.state.copied += bytes;
        copied.map_err(|error| match error {
            LentError::Transfer(TransferError::Source) => Refusal::NotLent,
            LentError::Transfer(TransferError::Destination) => status.into(),
            LentError::LoanOver => Refusal::LoanOver,
        })
    }

    /// Another adapter lends a file.
    pub(super) fn show_arrived(
        &mut self,
        packet: &Packet,
        from: Gid,
        (lease, descriptors): (&[u8], Vec<OwnedFd>),
    ) -> Result<Vec<u8>, Refusal> {
        let file = u32::try_from(packet.part.address).map_err(|_| Refusal::NotLent)?;
        let lease = ShownLease::read_from_bytes(lease).ok();
        let shown = (file, packet.part.key, lease);
        let is_taken = self.take_file(from, shown, descriptors);
        is_taken.then(|| packet::done(&[])).ok_or(Refusal::NotLent)
    }

    /// Another adapter has read what it was lent, and asks whether it was worth anything.
    pub(super) fn return_arrived(
        &mut self,
        packet: &Packet,
        from: Gid,
    ) -> Result<Vec<u8>, Refusal> {
        let number = packet.part.address;
        let is_its = self.state.lending.end_read(from, number);
        let loan = is_its.then(|| self.objects.take_loan(number)).flatten();
        let loan = loan.ok_or(Refusal::LoanOver)?;
        let bytes: usize = loan.memory().map(|(_, len)| len).sum();
        if loan.end().is_err() {
            self.state.lending.show_again(from);
            return Err(Refusal::LoanOver);
        }
        self.state.statistics.read_response_bytes += bytes as u64;
        self.state.statistics.lent_bytes += bytes as u64;
        self.count_sent(u32::try_from(bytes).unwrap_or(u32::MAX));
        Ok(packet::done(&[]))
    }

    /// Lends the memory of a read to another adapter. `None` if that does not know the memory yet: the answer comes later. Files have been
    /// shown for it `shows` times.
    pub(super) fn lend_read(
        &mut self,
        packet: &Packet,
        from: Gid,
        shows: &mut u8,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let sender = packet.sender(from, QueuePairKind::ReliableDatagram);
        let to = packet.destination;
        self.check_remote_buffer(&sender, to, (packet.whole(), Need::RemoteRead))?;
        let segments = self.remote_buffer(&sender, to, (packet.part, Need::RemoteRead))?;
        if !self.lends_to(from) {
            return Err(Refusal::NotLent);
        }
        let words = self.state.lending.words(from, self.now);
        let words = words.ok_or(Refusal::NotLent)?;
        let tag = responder::tag(to);
        let loan = self.state.transfers.lend(tag, &segments, &words.words);
        let loan = loan.ok_or(Refusal::LoanOver)?;
        let ranges = self.state.lending.ranges(&loan).ok_or(Refusal::LoanOver)?;
        match self.show(from, &loan, &words) {
            Shown::Known => {}
            Shown::Pending => return Ok(None),
            Shown::Asked if *shows < MOST_SHOWS => {
                *shows += 1;
                return Ok(None);
            }
            // Other loans need the slots of its files.
            Shown::Asked => return Err(Refusal::LoanOver),
            Shown::Refused => return Err(Refusal::NotLent),
            // Nothing was asked, so no answer would have it taken again.
            Shown::Busy => return Err(Refusal::LoanOver),
        }
        let number = self.state.next_id();
        if !self.state.lending.begin_read(from, number, self.now) {
            return Err(Refusal::LoanOver);
        }
        let lent = LentPart {
            word: (words.number, loan.id()),
            ranges,
        };
        let owner = (to, Need::RemoteRead);
        self.objects
            .hold_loan(number, loan, owner, [packet.part.key]);
        Ok(Some(packet::lent(number, &lent)))
    }

    /// Copies a part of a write from the memory that another adapter lends.
    pub(super) fn write_lent(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        lent: &[u8],
    ) -> Result<(), Refusal> {
        let (to, part) = (packet.destination, packet.part);
        self.check_remote_buffer(sender, to, (packet.whole(), Need::RemoteWrite))?;
        let segments = self.remote_buffer(sender, to, (part, Need::RemoteWrite))?;
        let lent = LentPart::decode(lent, part.bytes).ok_or(Refusal::NotLent)?;
        let status = CompletionStatus::RemoteBadAddress;
        self.copy_lent(responder::tag(to), (sender.gid, &lent), &segments, status)?;
        self.count_received(part.bytes as usize);
        self.state.statistics.write_received_bytes += u64::from(part.bytes);
        Ok(())
    }
}
