//! The receive queue of a queue pair. It lies in the guest's memory, and is read once.

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_efa_spec::completion::CompletionStatus;
use peerbar_efa_spec::work::{Operation, ReceiveDescriptor};
use peerbar_pci::Iova;
use zerocopy::{FromZeros, IntoBytes};

use super::completions::{CompletionWriter, Received};
use super::local::Local;
use crate::limits;
use crate::memory_bar::Doorbell;
use crate::objects::{Objects, slot};
use crate::work::request::Buffer;

/// The status of the sender if a receive queue is malformed or cannot be read.
const BAD_QUEUE: CompletionStatus = CompletionStatus::RemoteBadStatus;

/// A receive at the head of a receive queue.
pub(super) struct Receive {
    pub(super) request: u16,
    pub(super) buffers: Vec<Buffer>,
}

/// The receive queue of a queue pair.
pub(super) struct ReceiveQueue<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) local: &'a mut Local,
    /// Number of the queue pair.
    pub(super) pair: u16,
}

impl ReceiveQueue<'_> {
    /// Returns the next posted receive. A queue that is malformed or cannot be read puts its queue
    /// pair in error.
    pub(super) fn next(&mut self) -> Result<Option<Receive>, CompletionStatus> {
        let mut read = self.read();
        if matches!(read, Ok(None)) && self.sees_more() {
            read = self.read();
        }
        if read.is_err() {
            self.objects.queue_pairs.fail(self.pair);
        }
        read
    }

    /// Reads the doorbell once more. Returns `true` if the queue exists. A message that has arrived
    /// may have been sent after a receive was posted, and that receive after this turn took the
    /// doorbells.
    fn sees_more(&mut self) -> bool {
        let doorbell = Doorbell::Receive(slot(self.pair));
        let value = self.objects.doorbells.value(doorbell);
        let pair = self.objects.queue_pairs.get_mut(self.pair).ok();
        let Some((value, pair)) = value.zip(pair) else {
            return false;
        };
        pair.receive.set_posted(value);
        true
    }

    fn read(&mut self) -> Result<Option<Receive>, CompletionStatus> {
        let Ok(pair) = self.objects.queue_pairs.get(self.pair) else {
            return Ok(None);
        };
        let ring = pair.receive;
        let mut receive: Option<Receive> = None;
        for ahead in 0.. {
            let Some(address) = ring.peek(ahead).map_err(|_| BAD_QUEUE)? else {
                // A request whose last descriptor is missing is invalid.
                return receive.map_or(Ok(None), |_| Err(BAD_QUEUE));
            };
            let descriptor = self.read_descriptor(address)?;
            if descriptor.key.first() != receive.is_none() {
                return Err(BAD_QUEUE);
            }
            let receive = receive.get_or_insert_with(|| Receive {
                request: descriptor.req_id.get(),
                buffers: Vec::new(),
            });
            if receive.buffers.len() >= limits::RECEIVE_BUFFERS {
                return Err(BAD_QUEUE);
            }
            receive.buffers.push(Buffer {
                key: descriptor.key.lkey(),
                address: descriptor.address.get(),
                bytes: descriptor.length.get().into(),
            });
            if descriptor.key.last() {
                break;
            }
        }
        Ok(receive)
    }

    fn read_descriptor(&mut self, address: u64) -> Result<ReceiveDescriptor, CompletionStatus> {
        let mut descriptor = ReceiveDescriptor::new_zeroed();
        let tag = Tag::new(Purpose::Command, Origin::Queue(self.pair));
        let session = &mut self.local.transfers.session;
        let read = session.read(tag, Iova(address), descriptor.as_mut_bytes());
        read.map_err(|error| {
            let pair = self.pair;
            log::debug!(
                "receive queue of queue pair {pair}: {error}: {}",
                error.cause
            );
            BAD_QUEUE
        })?;
        Ok(descriptor)
    }

    pub(super) fn consume(&mut self, receive: &Receive) {
        if let Ok(pair) = self.objects.queue_pairs.get_mut(self.pair) {
            let descriptors = u16::try_from(receive.buffers.len()).unwrap_or(u16::MAX);
            pair.receive.advance(descriptors);
        }
    }

    /// Completes the receives that are posted on a queue pair in error. Returns `true` if there may
    /// be more.
    pub(super) fn flush(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            let Ok(Some(receive)) = self.read() else {
                if let Ok(pair) = self.objects.queue_pairs.get_mut(self.pair) {
                    pair.receive.discard();
                }
                return false;
            };
            self.consume(&receive);
            let flushed = Received {
                request: Some(receive.request),
                status: CompletionStatus::Flushed,
                operation: Operation::Send,
                bytes: 0,
                immediate: None,
                source: self.local.gid,
                source_pair: 0,
            };
            let mut completions = CompletionWriter {
                objects: self.objects,
                local: self.local,
            };
            completions.complete_receive(self.pair, &flushed);
        }
        true
    }
}
