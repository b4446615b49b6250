//! The responder side of a queue pair, which executes messages and requests of others. No sender is
//! trusted: its queue pair's number, queue key, addresses and keys are checked here, even if it is
//! on this adapter.

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{Operation, ReceiveDescriptor};
use zerocopy::{FromZeros, IntoBytes};

use super::completions::{CompletionWriter, Received};
use super::local::Local;
use super::transfers::{Failure, Payload, cut, total};
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::objects::{BusSegment, Gid, Need, Objects, QueuePairEvent, QueuePairKind, slot};
use crate::work::request::Buffer;

/// Size of the Global Routing Header before a datagram in its receive (InfiniBand Architecture 1.4,
/// 8.3).
pub(super) const ROUTING_HEADER_BYTES: usize = 40;

/// The sender of a message or request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) gid: Gid,
    pub(super) pair: u16,
    pub(super) kind: QueuePairKind,
    pub(super) qkey: u32,
}

/// A receive at the head of a receive queue.
struct Receive {
    request: u16,
    buffers: Vec<Buffer>,
}

/// The queue pair that receives a message or request.
#[derive(Clone, Copy)]
struct Receiver {
    number: u16,
    protection_domain: u16,
    unsolicited_writes: bool,
}

/// Executes messages and requests that come from other queue pairs.
pub(super) struct Responder<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) local: &'a mut Local,
}

impl Responder<'_> {
    pub(super) fn completions(&mut self) -> CompletionWriter<'_> {
        CompletionWriter {
            objects: self.objects,
            local: self.local,
        }
    }

    /// Puts a message into the next receive of queue pair `destination`. The status of a failure is
    /// the sender's.
    pub(super) fn receive_message(
        &mut self,
        sender: &Sender,
        destination: u16,
        immediate: Option<u32>,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let receiver = self.receiver(sender, destination)?;
        let Some(receive) = self.next_receive(receiver.number)? else {
            self.count_dropped(sender);
            return Err(CompletionStatus::RemoteNotReady);
        };
        let stored = self.store(sender, receiver, &receive, payload);
        let (status, outcome) = match stored {
            Ok(()) => (CompletionStatus::Ok, Ok(())),
            // The sender's own memory failed: the receive stays for another message.
            Err(status @ CompletionStatus::LocalInvalidKey) => return Err(status),
            Err(CompletionStatus::RemoteBadLength) => (
                CompletionStatus::LocalBadLength,
                Err(CompletionStatus::RemoteBadLength),
            ),
            Err(status) => (CompletionStatus::LocalInvalidKey, Err(status)),
        };
        self.consume(receiver.number, &receive);
        let header = header_bytes(sender.kind) as u64;
        let bytes = if outcome.is_ok() {
            payload.bytes() as u64 + header
        } else {
            0
        };
        let received = Received {
            request: Some(receive.request),
            status,
            operation: Operation::Send,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate,
            source: sender.gid,
            source_pair: sender.pair,
        };
        if !self
            .completions()
            .complete_receive(receiver.number, &received)
        {
            return Err(CompletionStatus::RemoteBadStatus);
        }
        outcome?;
        self.local.statistics.count_received(payload.bytes());
        self.local.statistics.receives += 1;
        self.local.statistics.receive_bytes += payload.bytes() as u64;
        Ok(())
    }

    /// Writes a part of an RDMA write to `to`, for queue pair `destination`.
    pub(super) fn write_memory(
        &mut self,
        sender: &Sender,
        destination: u16,
        to: Buffer,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let to = self.remote_buffer(sender, destination, (to, Need::RemoteWrite))?;
        let tag = tag(destination);
        let transfers = &mut self.local.transfers;
        let failure = Failure {
            source: CompletionStatus::LocalInvalidKey,
            destination: CompletionStatus::RemoteBadAddress,
        };
        transfers.put(tag, payload, &to, failure)?;
        self.local.statistics.count_received(payload.bytes());
        self.local.statistics.write_received_bytes += payload.bytes() as u64;
        Ok(())
    }

    /// Reads a part of memory for queue pair `destination`, whose sender takes it in a packet.
    pub(super) fn read_memory(
        &mut self,
        sender: &Sender,
        destination: u16,
        from: Buffer,
    ) -> Result<Vec<u8>, CompletionStatus> {
        let segments = self.remote_buffer(sender, destination, (from, Need::RemoteRead))?;
        let status = CompletionStatus::RemoteBadAddress;
        let data = self
            .local
            .transfers
            .read(tag(destination), &segments, status)?;
        let statistics = &mut self.local.statistics;
        statistics.read_response_bytes += data.len() as u64;
        statistics.packet_bytes += data.len() as u64;
        statistics.count_sent(from.bytes);
        Ok(data)
    }

    /// Returns the memory of a remote buffer, if the sender may use it as it needs, for queue pair
    /// `destination`.
    pub(super) fn remote_buffer(
        &mut self,
        sender: &Sender,
        destination: u16,
        (buffer, need): (Buffer, Need),
    ) -> Result<Vec<BusSegment>, CompletionStatus> {
        let domain = self.rdma_receiver(sender, destination)?.protection_domain;
        let mut segments = Vec::new();
        self.objects
            .regions
            .buffer(domain, buffer, need, &mut segments)
            .map_err(|error| {
                log::debug!("queue pair {destination}: {error}");
                CompletionStatus::RemoteBadAddress
            })?;
        Ok(segments)
    }

    /// Fails as [`Self::remote_buffer`] does.
    pub(super) fn check_remote_buffer(
        &mut self,
        sender: &Sender,
        destination: u16,
        (buffer, need): (Buffer, Need),
    ) -> Result<(), CompletionStatus> {
        let domain = self.rdma_receiver(sender, destination)?.protection_domain;
        let checked = self.objects.regions.check_buffer(domain, buffer, need);
        checked.map_err(|_| CompletionStatus::RemoteBadAddress)
    }

    /// Announces a complete RDMA write of `bytes` bytes with immediate data.
    pub(super) fn receive_immediate(
        &mut self,
        sender: &Sender,
        destination: u16,
        immediate: u32,
        bytes: u32,
    ) -> Result<(), CompletionStatus> {
        let receiver = self.rdma_receiver(sender, destination)?;
        let mut request = None;
        if !receiver.unsolicited_writes {
            let receive = self.next_receive(receiver.number)?;
            let receive = receive.ok_or(CompletionStatus::RemoteNotReady)?;
            self.consume(receiver.number, &receive);
            request = Some(receive.request);
        }
        let received = Received {
            request,
            status: CompletionStatus::Ok,
            operation: Operation::RdmaWrite,
            bytes,
            immediate: Some(immediate),
            source: sender.gid,
            source_pair: sender.pair,
        };
        if self
            .completions()
            .complete_receive(receiver.number, &received)
        {
            Ok(())
        } else {
            Err(CompletionStatus::RemoteBadStatus)
        }
    }

    /// Counts a complete transfer of a sender.
    pub(super) fn count_remote(
        &mut self,
        sender: &Sender,
        destination: u16,
        operation: Operation,
    ) -> Result<(), CompletionStatus> {
        let receiver = self.rdma_receiver(sender, destination)?;
        self.completions()
            .count_event(receiver.number, QueuePairEvent::Remote(operation));
        Ok(())
    }

    /// Returns the queue pair from which a sender may request RDMA: it must know the sender's
    /// adapter.
    fn rdma_receiver(
        &mut self,
        sender: &Sender,
        number: u16,
    ) -> Result<Receiver, CompletionStatus> {
        let receiver = self.receiver(sender, number)?;
        let domain = receiver.protection_domain;
        let handle = self.objects.address_handles.handle_of(sender.gid, domain);
        handle.ok_or(CompletionStatus::RemoteUnknownPeer)?;
        Ok(receiver)
    }

    /// Returns the queue pair to which a sender may send.
    fn receiver(&mut self, sender: &Sender, number: u16) -> Result<Receiver, CompletionStatus> {
        let pair = self.objects.queue_pairs.get(number).ok();
        let pair = pair.filter(|pair| pair.kind == sender.kind && pair.state.receives());
        let Some(pair) = pair else {
            self.count_dropped(sender);
            return Err(CompletionStatus::RemoteBadQueuePair);
        };
        if pair.qkey != sender.qkey {
            self.local.statistics.qkey_violations += 1;
            return Err(CompletionStatus::RemoteBadQueuePair);
        }
        Ok(Receiver {
            number,
            protection_domain: pair.protection_domain,
            unsolicited_writes: pair.unsolicited_writes,
        })
    }

    /// Copies a message into the buffers of a receive.
    fn store(
        &mut self,
        sender: &Sender,
        receiver: Receiver,
        receive: &Receive,
        payload: Payload<'_>,
    ) -> Result<(), CompletionStatus> {
        let mut segments = Vec::new();
        for buffer in &receive.buffers {
            self.objects
                .regions
                .buffer(
                    receiver.protection_domain,
                    *buffer,
                    Need::LocalWrite,
                    &mut segments,
                )
                .map_err(|error| {
                    log::debug!("receive of queue pair {}: {error}", receiver.number);
                    CompletionStatus::RemoteBadStatus
                })?;
        }
        let header = header_bytes(sender.kind);
        let bytes = payload.bytes();
        if total(&segments) < header.saturating_add(bytes) {
            return Err(CompletionStatus::RemoteBadLength);
        }
        let tag = tag(receiver.number);
        let head = cut(&segments, 0, header);
        let body = cut(&segments, header, bytes);
        let gid = self.local.gid;
        let transfers = &mut self.local.transfers;
        let failure = Failure {
            source: CompletionStatus::LocalInvalidKey,
            destination: CompletionStatus::RemoteBadStatus,
        };
        if sender.kind == QueuePairKind::Datagram {
            let routing = routing_header(sender.gid, gid, bytes);
            transfers.write(tag, &routing, &head, failure.destination)?;
        }
        transfers.put(tag, payload, &body, failure)
    }

    /// Returns the next posted receive. A receive queue that is malformed or cannot be read puts
    /// its queue pair in error.
    fn next_receive(&mut self, number: u16) -> Result<Option<Receive>, CompletionStatus> {
        let mut read = self.read_receive(number);
        if matches!(read, Ok(None)) && self.sees_more_receives(number) {
            read = self.read_receive(number);
        }
        if read.is_err() {
            self.objects.queue_pairs.fail(number);
        }
        read.map_err(|BadReceiveQueue| CompletionStatus::RemoteBadStatus)
    }

    /// Reads the doorbell of a receive queue once more. Returns `true` if the queue exists. A
    /// message that has arrived may have been sent after a receive was posted, and that receive
    /// after this turn took the doorbells.
    fn sees_more_receives(&mut self, number: u16) -> bool {
        let doorbell = Doorbell::Receive(slot(number));
        let value = self.objects.doorbells.value(doorbell);
        let Some((value, pair)) = value.zip(self.objects.queue_pairs.get_mut(number).ok()) else {
            return false;
        };
        pair.receive.set_posted(value);
        true
    }

    fn read_receive(&mut self, number: u16) -> Result<Option<Receive>, BadReceiveQueue> {
        let Ok(pair) = self.objects.queue_pairs.get(number) else {
            return Ok(None);
        };
        let ring = pair.receive;
        let mut receive: Option<Receive> = None;
        for ahead in 0.. {
            let address = ring.peek(ahead).map_err(|_| BadReceiveQueue)?;
            let Some(address) = address else {
                // A request whose last descriptor is missing is invalid.
                return receive.map_or(Ok(None), |_| Err(BadReceiveQueue));
            };
            let descriptor = self.read_descriptor(number, address)?;
            let buffer = Buffer {
                key: descriptor.key.lkey(),
                address: descriptor.address.get(),
                bytes: descriptor.length.get().into(),
            };
            if descriptor.key.first() != receive.is_none() {
                return Err(BadReceiveQueue);
            }
            let receive = receive.get_or_insert_with(|| Receive {
                request: descriptor.req_id.get(),
                buffers: Vec::new(),
            });
            if receive.buffers.len() >= limits::RECEIVE_BUFFERS {
                return Err(BadReceiveQueue);
            }
            receive.buffers.push(buffer);
            if descriptor.key.last() {
                break;
            }
        }
        Ok(receive)
    }

    fn read_descriptor(
        &mut self,
        number: u16,
        address: u64,
    ) -> Result<ReceiveDescriptor, BadReceiveQueue> {
        let mut descriptor = ReceiveDescriptor::new_zeroed();
        let tag = Tag::new(Purpose::Command, Origin::Queue(number));
        let session = &mut self.local.transfers.session;
        let read = session.read(tag, address, descriptor.as_mut_bytes());
        read.map_err(|error| {
            log::debug!(
                "receive queue of queue pair {number}: {error}: {}",
                error.cause
            );
            BadReceiveQueue
        })?;
        Ok(descriptor)
    }

    fn consume(&mut self, number: u16, receive: &Receive) {
        if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
            let descriptors = u16::try_from(receive.buffers.len()).unwrap_or(u16::MAX);
            pair.receive.advance(descriptors);
        }
    }

    /// Completes the receives that are posted on a queue pair in error. Returns `true` if there may
    /// be more.
    pub(super) fn flush_receives(&mut self, number: u16, limit: usize) -> bool {
        for _ in 0..limit {
            let Ok(Some(receive)) = self.read_receive(number) else {
                if let Ok(pair) = self.objects.queue_pairs.get_mut(number) {
                    pair.receive.discard();
                }
                return false;
            };
            self.consume(number, &receive);
            let flushed = Received {
                request: Some(receive.request),
                status: CompletionStatus::Flushed,
                operation: Operation::Send,
                bytes: 0,
                immediate: None,
                source: self.local.gid,
                source_pair: 0,
            };
            self.completions().complete_receive(number, &flushed);
        }
        true
    }

    /// Counts a dropped datagram. The sender of any other message learns of the failure.
    fn count_dropped(&mut self, sender: &Sender) {
        if sender.kind == QueuePairKind::Datagram {
            self.local.statistics.dropped += 1;
        }
    }
}

/// A receive queue that is malformed or cannot be read.
#[derive(Debug)]
struct BadReceiveQueue;

fn header_bytes(kind: QueuePairKind) -> usize {
    match kind {
        QueuePairKind::Datagram => ROUTING_HEADER_BYTES,
        QueuePairKind::ReliableDatagram => 0,
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

pub(super) fn tag(pair: u16) -> Tag {
    Tag::new(Purpose::Payload, Origin::Queue(pair))
}
