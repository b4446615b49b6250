//! Packets of other adapters to the queue pairs here, and their answers to packets of this one.

use peerbar_dma::Span;
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;
use zerocopy::FromBytes;

use super::remote::InFlight;
use super::responder::{self, Payload, Sender};
use super::turn::Turn;
use super::wire::{Arrival, Mail};
use crate::objects::{BusSegment, Gid, Need, QueuePairEvent, QueuePairKind};
use crate::work::packet::{self, Packet, Refusal, Verb};
use crate::work::staging::SlotName;

/// Limits of the packets and of the answers that are taken in one turn, and the number of bytes
/// copied from or to slots after which it ends.
const MAIL: usize = 32;
pub(super) const STAGED_IN_A_TURN: u64 = 1 << 20;

impl Turn<'_> {
    /// Takes packets and answers of other adapters.
    pub(super) fn take_mail(&mut self) {
        if let Some(wire) = self.state.wire.get() {
            wire.receive();
        }
        for _ in 0..MAIL {
            let Some((token, answer)) = self.state.mailbox.next_answer() else {
                break;
            };
            match self.state.sent.remove(&token) {
                Some(InFlight::Packet(sent)) => self.take_answer(&sent, answer),
                Some(InFlight::Buffer { gid, number }) => {
                    let is_taken = answer.is_ok_and(|it| packet::decode_answer(&it).is_ok());
                    let staging = &mut self.state.staging;
                    staging.take_answer(gid, number, is_taken, self.now);
                }
                None => {}
            }
            if self.state.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
        self.wake_slot_waiters();
        for _ in 0..MAIL {
            match self.state.mailbox.next_mail() {
                Some(Mail::Packet(arrival)) => self.take_arrival(arrival),
                Some(Mail::Gone(gid)) => self.state.staging.forget(gid),
                None => break,
            }
            if self.state.staged >= STAGED_IN_A_TURN {
                break;
            }
        }
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
            Verb::Share => self.share_arrived(&packet, from, arrival.descriptors),
            _ => self.carry_out(&packet, from, kind, payload),
        };
        let outcome = outcome.map(|answer| self.with_count(&packet, answer));
        self.state.transfers.session.release();
        if let Some(reply) = arrival.reply {
            reply(outcome.unwrap_or_else(packet::refused));
        }
    }

    /// Executes a packet. Returns the answer, or the status of a failure.
    fn carry_out(
        &mut self,
        packet: &Packet,
        from: Gid,
        kind: QueuePairKind,
        data: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let sender = Sender {
            gid: from,
            pair: packet.source,
            kind,
            qkey: packet.qkey,
        };
        let (to, payload) = (packet.destination, Payload::Bytes(data));
        let mut answer = packet::done(&[]);
        match packet.verb {
            Verb::Message => self.receive_message(&sender, to, packet.immediate, payload)?,
            Verb::Announce => {
                let immediate = packet.immediate.unwrap_or(0);
                self.receive_immediate(&sender, to, immediate, packet.total)?;
                self.count_event(to, QueuePairEvent::Remote(Operation::RdmaWrite));
            }
            Verb::CountRead => self.count_remote(&sender, to, Operation::RdmaRead)?,
            Verb::CountWrite => self.count_remote(&sender, to, Operation::RdmaWrite)?,
            Verb::Write if packet.is_staged => self.write_staged(packet, &sender, data)?,
            Verb::Read if packet.is_staged => self.read_staged(packet, &sender, data)?,
            Verb::Write => {
                self.check_remote_buffer(&sender, to, (packet.whole(), Need::RemoteWrite))?;
                self.write_memory(&sender, to, packet.part, payload)?;
            }
            Verb::Read => {
                self.check_remote_buffer(&sender, to, (packet.whole(), Need::RemoteRead))?;
                answer.extend(self.read_memory(packet, &sender, to)?);
            }
            Verb::Share => return Err(CompletionStatus::RemoteBadStatus.into()),
        }
        Ok(answer)
    }

    /// Returns the answer to a part of a transfer. The answer asks for a report of the transfer's
    /// end if this side counts it. A write with immediate data is announced anyway.
    fn with_count(&self, packet: &Packet, mut answer: Vec<u8>) -> Vec<u8> {
        let operation = match (packet.verb, packet.immediate) {
            (Verb::Read, _) => Operation::RdmaRead,
            (Verb::Write, None) => Operation::RdmaWrite,
            _ => return answer,
        };
        let event = QueuePairEvent::Remote(operation);
        let pair = self.objects.queue_pairs.get(packet.destination);
        if pair.is_ok_and(|pair| pair.counter_of(event).is_some()) {
            packet::ask_to_count(&mut answer);
        }
        answer
    }

    /// Reads a part of memory for another adapter.
    fn read_memory(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        to: u16,
    ) -> Result<Vec<u8>, CompletionStatus> {
        let segments = self.remote_buffer(sender, to, (packet.part, Need::RemoteRead))?;
        let data = self.state.transfers.read(responder::tag(to), &segments);
        let data = data.map_err(|_| CompletionStatus::RemoteBadAddress)?;
        self.state.statistics.read_response_bytes += data.len() as u64;
        self.state.statistics.packet_bytes += data.len() as u64;
        self.count_sent(packet.part.bytes);
        Ok(data)
    }

    /// Writes a part of memory for another adapter, from its slot.
    fn write_staged(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let (to, part) = (packet.destination, packet.part);
        let (segments, slot) = self.staged_part(packet, sender, payload, Need::RemoteWrite)?;
        let status = CompletionStatus::RemoteBadAddress;
        self.take_from_slot(responder::tag(to), &slot, &segments, status)?;
        self.count_received(part.bytes as usize);
        self.state.statistics.write_received_bytes += u64::from(part.bytes);
        Ok(())
    }

    /// Reads a part of memory for another adapter, into its slot.
    fn read_staged(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let (to, part) = (packet.destination, packet.part);
        let (segments, slot) = self.staged_part(packet, sender, payload, Need::RemoteRead)?;
        let status = CompletionStatus::RemoteBadAddress;
        self.put_into_slot(responder::tag(to), &segments, &slot, status)?;
        let statistics = &mut self.state.statistics;
        statistics.read_response_bytes += u64::from(part.bytes);
        statistics.staged_bytes += u64::from(part.bytes);
        self.count_sent(part.bytes);
        Ok(())
    }

    /// Returns the memory of a part, and the slot that its packet names.
    fn staged_part(
        &mut self,
        packet: &Packet,
        sender: &Sender,
        payload: &[u8],
        need: Need,
    ) -> Result<(Vec<BusSegment>, Span), Refusal> {
        let to = packet.destination;
        self.check_remote_buffer(sender, to, (packet.whole(), need))?;
        let segments = self.remote_buffer(sender, to, (packet.part, need))?;
        let name = SlotName::read_from_bytes(payload).ok();
        let slot = name.and_then(|name| self.state.staging.shared(sender.gid, name));
        Ok((segments, slot.ok_or(Refusal::NotStaged)?))
    }
}
