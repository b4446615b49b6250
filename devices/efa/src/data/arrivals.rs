//! Packets of other adapters to the queue pairs here, and their answers to packets of this one.

use peerbar_dma::Span;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use zerocopy::FromBytes;

use super::peers::{InFlight, SentPacket};
use super::requester::Requester;
use super::responder::{Responder, Sender};
use super::transfers::Payload;
use super::turn::{STAGED_IN_A_TURN, Turn};
use super::wire::{Answer, Arrival, Mail};
use crate::objects::{BusSegment, Need, QueuePairEvent, QueuePairKind};
use crate::work::job::{Step, Wait};
use crate::work::packet::{self, Packet, Refusal, Verb};
use crate::work::staging::{SlotName, Staging};

/// Limits of the packets and of the answers that are taken in one turn.
const MAIL: usize = 32;

impl Turn<'_> {
    /// Takes packets and answers of other adapters.
    pub(super) fn take_mail(&mut self) {
        if let Some(wire) = self.peers.wire.get() {
            wire.receive();
        }
        for _ in 0..MAIL {
            let Some((token, answer)) = self.peers.mailbox.next_answer() else {
                break;
            };
            match self.peers.in_flight.remove(&token) {
                Some(InFlight::Packet(sent)) => self.take_answer(&sent, answer),
                Some(InFlight::Buffer { gid, number }) => {
                    let is_taken = answer.is_ok_and(|it| packet::decode_answer(&it).is_ok());
                    let staging = &mut self.peers.staging;
                    staging.take_answer(gid, number, is_taken, self.now);
                }
                None => {}
            }
            if self.local.transfers.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
        self.peers.wake_slot_waiters(&mut self.objects.queue_pairs);
        for _ in 0..MAIL {
            match self.peers.mailbox.next_mail() {
                Some(Mail::Packet(arrival)) => self.take_arrival(arrival),
                Some(Mail::Gone(gid)) => self.peers.staging.forget(gid),
                None => break,
            }
            if self.local.transfers.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
    }

    /// Takes the outcome of a packet of a work request.
    fn take_answer(&mut self, sent: &SentPacket, answer: Answer) {
        if let Some(slot) = sent.slot.as_ref().filter(|_| answer.is_err()) {
            // Without an answer the other adapter may still use it.
            let staging = &mut self.peers.staging;
            staging.give_up(sent.gid, slot.name.buffer(), self.now);
        }
        let Ok(pair) = self.objects.queue_pairs.get_mut(sent.pair) else {
            return;
        };
        // The job is missing if its queue pair was reset or is in error.
        let Some((index, mut job)) = pair.jobs.take_one(sent.job) else {
            return;
        };
        let requester = Requester::new(self.local.gid, pair, &job);
        let mut request = self.remote(&requester, sent.gid, &mut job);
        let wait = match request.take_answer(sent, answer) {
            Step::After(wait) => wait,
            _ => Wait::Turn,
        };
        let pairs = &mut self.objects.queue_pairs;
        pairs.put_back(sent.pair, index, job, wait);
        pairs.make_ready(sent.pair);
    }

    /// Executes a packet of another adapter, and answers it if an answer is wanted.
    fn take_arrival(&mut self, arrival: Arrival) {
        let from = arrival.from;
        let Some((packet, payload)) = Packet::decode(&arrival.data) else {
            return log::debug!("invalid packet from {from}");
        };
        let kind = match arrival.reply {
            Some(_) => QueuePairKind::ReliableDatagram,
            None => QueuePairKind::Datagram,
        };
        if kind == QueuePairKind::Datagram && packet.verb != Verb::Message {
            return log::debug!("a datagram from {from} is not a message");
        }
        let outcome = match packet.verb {
            Verb::Share => self.peers.share_arrived(&packet, from, arrival.descriptors),
            _ => Inbound {
                packet: &packet,
                payload,
                responder: Responder {
                    objects: self.objects,
                    local: self.local,
                    sender: Sender {
                        gid: from,
                        pair: packet.source,
                        kind,
                        qkey: packet.qkey,
                    },
                    pair: packet.destination,
                },
                staging: &self.peers.staging,
            }
            .execute(),
        };
        self.local.transfers.session.release();
        if let Some(reply) = arrival.reply {
            reply(outcome.unwrap_or_else(packet::refused));
        }
    }
}

/// A packet of another adapter to a queue pair.
struct Inbound<'a> {
    packet: &'a Packet,
    payload: &'a [u8],
    responder: Responder<'a>,
    staging: &'a Staging,
}

impl Inbound<'_> {
    /// Executes a packet. Returns the answer, or the status of a failure.
    fn execute(&mut self) -> Result<Vec<u8>, Refusal> {
        let (packet, responder) = (self.packet, &mut self.responder);
        let payload = Payload::Bytes(self.payload);
        let mut answer = packet::done(&[]);
        match packet.verb {
            Verb::Message => responder.receive_message(packet.immediate, payload)?,
            Verb::Announce => {
                responder.receive_immediate(packet.immediate.unwrap_or(0), packet.total)?;
                responder.count_done(Operation::RdmaWrite);
            }
            Verb::CountRead => responder.count_remote(Operation::RdmaRead)?,
            Verb::CountWrite => responder.count_remote(Operation::RdmaWrite)?,
            Verb::Write if packet.is_staged => self.write_staged()?,
            Verb::Read if packet.is_staged => self.read_staged()?,
            Verb::Write => {
                responder.check_remote_buffer(packet.whole(), Need::RemoteWrite)?;
                responder.write_memory(packet.part, payload)?;
            }
            Verb::Read => {
                responder.check_remote_buffer(packet.whole(), Need::RemoteRead)?;
                answer.extend(responder.read_memory(packet.part)?);
            }
            Verb::Share => return Err(CompletionStatus::RemoteBadStatus.into()),
        }
        if self.is_counted() {
            packet::ask_to_count(&mut answer);
        }
        Ok(answer)
    }

    /// Returns `true` if the requester must report the end of the transfer, because this side
    /// counts it. A write with immediate data is announced anyway.
    fn is_counted(&self) -> bool {
        let operation = match (self.packet.verb, self.packet.immediate) {
            (Verb::Read, _) => Operation::RdmaRead,
            (Verb::Write, None) => Operation::RdmaWrite,
            _ => return false,
        };
        let event = QueuePairEvent::Remote(operation);
        let pairs = &self.responder.objects.queue_pairs;
        let pair = pairs.get(self.packet.destination);
        pair.is_ok_and(|pair| pair.counter_of(event).is_some())
    }

    /// Writes a part of memory from its slot.
    fn write_staged(&mut self) -> Result<(), Refusal> {
        let (segments, slot) = self.staged_part(Need::RemoteWrite)?;
        let (tag, bytes) = (self.responder.tag(), self.packet.part.bytes);
        let local = &mut self.responder.local;
        let status = CompletionStatus::RemoteBadAddress;
        local.transfers.take_from(tag, &slot, &segments, status)?;
        local.statistics.count_received(bytes as usize);
        local.statistics.write_received_bytes += u64::from(bytes);
        Ok(())
    }

    /// Reads a part of memory into its slot.
    fn read_staged(&mut self) -> Result<(), Refusal> {
        let (segments, slot) = self.staged_part(Need::RemoteRead)?;
        let (tag, bytes) = (self.responder.tag(), self.packet.part.bytes);
        let local = &mut self.responder.local;
        let status = CompletionStatus::RemoteBadAddress;
        local.transfers.put_into(tag, &segments, &slot, status)?;
        local.statistics.read_response_bytes += u64::from(bytes);
        local.statistics.staged_bytes += u64::from(bytes);
        local.statistics.count_sent(bytes);
        Ok(())
    }

    /// Returns the memory of the part, and the slot that the packet names.
    fn staged_part(&mut self, need: Need) -> Result<(Vec<BusSegment>, Span), Refusal> {
        let (packet, responder) = (self.packet, &mut self.responder);
        responder.check_remote_buffer(packet.whole(), need)?;
        let segments = responder.remote_buffer(packet.part, need)?;
        let name = SlotName::read_from_bytes(self.payload).ok();
        let slot = name.and_then(|name| self.staging.shared(responder.sender.gid, name));
        Ok((segments, slot.ok_or(Refusal::NotStaged)?))
    }
}
