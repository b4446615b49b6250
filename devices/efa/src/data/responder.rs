//! The responder side of a queue pair, which executes messages and requests of others. No sender is
//! trusted: its queue pair's number, queue key, addresses and keys are checked here, even if it is
//! on this adapter.

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::Operation;

use super::completions::{CompletionWriter, Received};
use super::local::Local;
use super::receive_queue::{Receive, ReceiveQueue};
use super::transfers::{Failure, Payload, cut, total};
use crate::objects::{BusSegment, Gid, Need, Objects, QueuePair, QueuePairEvent, QueuePairKind};
use crate::work::request::Buffer;

/// Size of the Global Routing Header before a datagram in its receive (InfiniBand Architecture 1.4,
/// 8.3).
const ROUTING_HEADER_BYTES: usize = 40;

/// The sender of a message or request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) gid: Gid,
    pub(super) pair: u16,
    pub(super) kind: QueuePairKind,
    pub(super) qkey: u32,
}

/// Executes the messages and requests of a sender to a queue pair. The statuses of failures are the
/// sender's.
pub(super) struct Responder<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) local: &'a mut Local,
    pub(super) sender: Sender,
    /// Number of the queue pair.
    pub(super) pair: u16,
}

impl Responder<'_> {
    fn completions(&mut self) -> CompletionWriter<'_> {
        CompletionWriter {
            objects: self.objects,
            local: self.local,
        }
    }

    fn receives(&mut self) -> ReceiveQueue<'_> {
        ReceiveQueue {
            objects: self.objects,
            local: self.local,
            pair: self.pair,
        }
    }

    /// Puts a message into the next receive.
    pub(super) fn receive_message(
        &mut self,
        immediate: Option<u32>,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let domain = self.receiver()?.protection_domain;
        let Some(receive) = self.receives().next()? else {
            self.local.statistics.count_dropped(self.sender.kind);
            return Err(CompletionStatus::RemoteNotReady);
        };
        let stored = self.store(domain, &receive, payload);
        let status = match stored {
            Ok(()) => CompletionStatus::Ok,
            // The sender's own memory failed: the receive stays for another message.
            Err(status @ CompletionStatus::LocalInvalidKey) => return Err(status),
            Err(CompletionStatus::RemoteBadLength) => CompletionStatus::LocalBadLength,
            Err(_) => CompletionStatus::LocalInvalidKey,
        };
        self.receives().consume(&receive);
        let bytes = stored.map_or(0, |()| payload.bytes() + self.header_bytes());
        self.complete(Received {
            request: Some(receive.request),
            status,
            operation: Operation::Send,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate,
            source: self.sender.gid,
            source_pair: self.sender.pair,
        })?;
        stored?;
        let statistics = &mut self.local.statistics;
        statistics.count_received(payload.bytes());
        statistics.receives += 1;
        statistics.receive_bytes += payload.bytes() as u64;
        Ok(())
    }

    /// Writes a part of an RDMA write to `to`.
    pub(super) fn write_memory(
        &mut self,
        to: Buffer,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let to = self.remote_buffer(to, Need::RemoteWrite)?;
        let failure = Failure {
            source: CompletionStatus::LocalInvalidKey,
            destination: CompletionStatus::RemoteBadAddress,
        };
        let tag = self.tag();
        self.local.transfers.put(tag, payload, &to, failure)?;
        self.local.statistics.count_received(payload.bytes());
        self.local.statistics.write_received_bytes += payload.bytes() as u64;
        Ok(())
    }

    /// Reads a part of memory, which the sender takes in a packet.
    pub(super) fn read_memory(&mut self, from: Buffer) -> Result<Vec<u8>, CompletionStatus> {
        let segments = self.remote_buffer(from, Need::RemoteRead)?;
        let (tag, status) = (self.tag(), CompletionStatus::RemoteBadAddress);
        let data = self.local.transfers.read(tag, &segments, status)?;
        let statistics = &mut self.local.statistics;
        statistics.read_response_bytes += data.len() as u64;
        statistics.packet_bytes += data.len() as u64;
        statistics.count_sent(from.bytes);
        Ok(data)
    }

    /// Returns the memory of a remote buffer, if the sender may use it as it needs.
    pub(super) fn remote_buffer(
        &mut self,
        buffer: Buffer,
        need: Need,
    ) -> Result<Vec<BusSegment>, CompletionStatus> {
        let domain = self.rdma_domain()?;
        let mut segments = Vec::new();
        let regions = &self.objects.regions;
        let found = regions.buffer(domain, buffer, need, &mut segments);
        found.map_err(|error| {
            log::debug!("queue pair {}: {error}", self.pair);
            CompletionStatus::RemoteBadAddress
        })?;
        Ok(segments)
    }

    /// Fails as [`Self::remote_buffer`] does.
    pub(super) fn check_remote_buffer(
        &mut self,
        buffer: Buffer,
        need: Need,
    ) -> Result<(), CompletionStatus> {
        let domain = self.rdma_domain()?;
        let checked = self.objects.regions.check_buffer(domain, buffer, need);
        checked.map_err(|_| CompletionStatus::RemoteBadAddress)
    }

    /// Announces a complete RDMA write of `bytes` bytes with immediate data.
    pub(super) fn receive_immediate(
        &mut self,
        immediate: u32,
        bytes: u32,
    ) -> Result<(), CompletionStatus> {
        self.rdma_domain()?;
        let mut request = None;
        if !self.receiver()?.unsolicited_writes {
            let mut receives = self.receives();
            let receive = receives.next()?;
            let receive = receive.ok_or(CompletionStatus::RemoteNotReady)?;
            receives.consume(&receive);
            request = Some(receive.request);
        }
        self.complete(Received {
            request,
            status: CompletionStatus::Ok,
            operation: Operation::RdmaWrite,
            bytes,
            immediate: Some(immediate),
            source: self.sender.gid,
            source_pair: self.sender.pair,
        })
    }

    fn complete(&mut self, received: Received) -> Result<(), CompletionStatus> {
        let pair = self.pair;
        let is_written = self.completions().complete_receive(pair, &received);
        is_written
            .then_some(())
            .ok_or(CompletionStatus::RemoteBadStatus)
    }

    /// Counts a complete transfer, which may be one of RDMA.
    pub(super) fn count_remote(&mut self, operation: Operation) -> Result<(), CompletionStatus> {
        self.rdma_domain()?;
        self.count_done(operation);
        Ok(())
    }

    /// Counts a transfer that has been executed.
    pub(super) fn count_done(&mut self, operation: Operation) {
        let pair = self.pair;
        let event = QueuePairEvent::Remote(operation);
        self.completions().count_event(pair, event);
    }

    /// Returns the protection domain of the queue pair, if the sender may request RDMA: the queue
    /// pair must know the sender's adapter.
    fn rdma_domain(&mut self) -> Result<u16, CompletionStatus> {
        let domain = self.receiver()?.protection_domain;
        let handles = &self.objects.address_handles;
        let handle = handles.handle_of(self.sender.gid, domain);
        handle.ok_or(CompletionStatus::RemoteUnknownPeer)?;
        Ok(domain)
    }

    /// Returns the queue pair, if the sender may send to it.
    fn receiver(&mut self) -> Result<&QueuePair, CompletionStatus> {
        let (sender, pair) = (&self.sender, self.objects.queue_pairs.get(self.pair));
        match pair {
            Ok(pair) if pair.kind == sender.kind && pair.state.receives() => {
                if pair.qkey != sender.qkey {
                    self.local.statistics.qkey_violations += 1;
                    return Err(CompletionStatus::RemoteBadQueuePair);
                }
                Ok(pair)
            }
            _ => {
                self.local.statistics.count_dropped(sender.kind);
                Err(CompletionStatus::RemoteBadQueuePair)
            }
        }
    }

    /// Copies a message into the buffers of a receive.
    fn store(
        &mut self,
        domain: u16,
        receive: &Receive,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let failure = Failure {
            source: CompletionStatus::LocalInvalidKey,
            destination: CompletionStatus::RemoteBadStatus,
        };
        let mut segments = Vec::new();
        for buffer in &receive.buffers {
            let regions = &self.objects.regions;
            let found = regions.buffer(domain, *buffer, Need::LocalWrite, &mut segments);
            found.map_err(|error| {
                log::debug!("receive of queue pair {}: {error}", self.pair);
                failure.destination
            })?;
        }
        let (header, bytes) = (self.header_bytes(), payload.bytes());
        if total(&segments) < header.saturating_add(bytes) {
            return Err(CompletionStatus::RemoteBadLength);
        }
        let tag = self.tag();
        let body = cut(&segments, header, bytes);
        let transfers = &mut self.local.transfers;
        if header > 0 {
            let routing = routing_header(self.sender.gid, self.local.gid, bytes);
            let head = cut(&segments, 0, header);
            transfers.write(tag, &routing, &head, failure.destination)?;
        }
        transfers.put(tag, payload, &body, failure)
    }

    /// Returns the length of the header before a message.
    fn header_bytes(&self) -> usize {
        match self.sender.kind {
            QueuePairKind::Datagram => ROUTING_HEADER_BYTES,
            QueuePairKind::ReliableDatagram => 0,
        }
    }

    pub(super) fn tag(&self) -> Tag {
        Tag::new(Purpose::Payload, Origin::Queue(self.pair))
    }
}

/// Returns the header before a datagram: version 6, its length, both addresses.
fn routing_header(from: Gid, to: Gid, bytes: usize) -> [u8; ROUTING_HEADER_BYTES] {
    let mut header = [0; ROUTING_HEADER_BYTES];
    let [high, low] = u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let fields = [0x60, 0, 0, 0, high, low, 0, 0];
    let all = fields.iter().chain(&from.0).chain(&to.0);
    header
        .iter_mut()
        .zip(all)
        .for_each(|(to, from)| *to = *from);
    header
}
