//! Completions and events that the adapter writes into the queues of the guest, and the interrupts
//! that follow.

use peerbar_dma::Origin;
use peerbar_efa_spec::completion::{
    CompletionCommon, CompletionDoorbell, CompletionFlags, CompletionStatus, EVENT_BYTES,
    EXTENDED_ENTRY_BYTES, EventCommon, EventEntry, ExtendedCompletion, NO_ADDRESS_HANDLE,
    QueueType, ReceiveCompletion, SendCompletion,
};
use peerbar_efa_spec::work::Operation;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::local::Local;
use crate::entry::ring_entry;
use crate::objects::{CreateEventQueue, Gid, NEVER_WRITTEN, Objects, QueuePairEvent};
use crate::work::request::WorkRequest;

/// A message or an RDMA write that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Number of the receive that was consumed, or `None` if none was.
    pub(super) request: Option<u16>,
    pub(super) status: CompletionStatus,
    pub(super) operation: Operation,
    pub(super) bytes: u32,
    pub(super) immediate: Option<u32>,
    pub(super) source: Gid,
    pub(super) source_pair: u16,
}

/// Writes completions, events and event counters into the guest's memory.
pub(super) struct CompletionWriter<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) local: &'a mut Local,
}

impl CompletionWriter<'_> {
    /// Ends a work request of this queue pair's send queue: counts it, and posts a completion if
    /// one is wanted or the request has failed.
    pub(super) fn end_send(&mut self, pair: u16, request: &WorkRequest, status: CompletionStatus) {
        let WorkRequest { id, operation, .. } = *request;
        let is_ok = status == CompletionStatus::Ok;
        self.count_event(pair, QueuePairEvent::Sent { operation, is_ok });
        if is_ok && !request.is_signalled {
            return;
        }
        let Ok(sender) = self.objects.queue_pairs.get(pair) else {
            return;
        };
        let queue = sender.send_completions;
        let flags = CompletionFlags::new()
            .with_queue_type(QueueType::Send as u8)
            .with_operation(operation as u8);
        let entry = SendCompletion {
            common: common(id.low, status, flags, pair),
            req_id_ex: id.high.map(U16::new),
            reserved: [0; 4],
        };
        let mut bytes = [0; EXTENDED_ENTRY_BYTES];
        for (to, from) in bytes.iter_mut().zip(entry.as_bytes()) {
            *to = *from;
        }
        self.post(pair, queue, bytes);
    }

    /// Completes and counts a receive of this queue pair. Returns `true` if the completion was
    /// written. Like the hardware's, an entry of 16 bytes has only 16 bits of the length: the upper
    /// bits of a long RDMA write's length are in the second half of a longer entry.
    pub(super) fn complete_receive(&mut self, pair: u16, received: &Received) -> bool {
        if received.request.is_some() {
            let is_ok = received.status == CompletionStatus::Ok;
            self.count_event(pair, QueuePairEvent::Received { is_ok });
        }
        let Ok(receiver) = self.objects.queue_pairs.get(pair) else {
            return false;
        };
        let queue = receiver.receive_completions;
        let domain = receiver.protection_domain;
        let handle = self
            .objects
            .address_handles
            .handle_of(received.source, domain);
        let flags = CompletionFlags::new()
            .with_queue_type(QueueType::Receive as u8)
            .with_operation(received.operation as u8)
            .with_has_immediate(received.immediate.is_some())
            .with_unsolicited(received.request.is_none());
        let [a, b, c, d] = received.bytes.to_le_bytes();
        let base = ReceiveCompletion {
            common: common(received.request.unwrap_or(0), received.status, flags, pair),
            length: U16::from_bytes([a, b]),
            ah: U16::new(handle.unwrap_or(NO_ADDRESS_HANDLE)),
            src_qp_num: U16::new(received.source_pair),
            immediate: U32::new(received.immediate.unwrap_or(0)),
        };
        let wants_source = self
            .objects
            .completion_queues
            .get(queue)
            .is_ok_and(|it| it.parameters.with_source_address);
        let mut extension = [0; 16];
        if received.operation == Operation::RdmaWrite {
            let [low, high, ..] = &mut extension;
            (*low, *high) = (c, d);
        } else if handle.is_none() && wants_source {
            extension = received.source.0;
        }
        let entry = ExtendedCompletion { base, extension };
        self.post(pair, queue, zerocopy::transmute!(entry))
    }

    /// Writes a completion of a queue pair. A queue of short entries takes the first half. Returns
    /// `true` if it was written.
    fn post(&mut self, pair: u16, number: u16, mut entry: [u8; EXTENDED_ENTRY_BYTES]) -> bool {
        let Ok(queue) = self.objects.completion_queues.get_mut(number) else {
            return false;
        };
        if queue.has_failed {
            // The queue pair was reset and started again since.
            self.objects.queue_pairs.fail(pair);
            return false;
        }
        if queue.outstanding() >= queue.parameters.entries {
            let doorbell = queue.polled_doorbell;
            let written = doorbell.and_then(|offset| self.objects.bar_memory.load(offset).ok());
            if let Some(value) = written {
                queue.is_followed |= value != NEVER_WRITTEN;
                queue.consumed = CompletionDoorbell::from_bits(value).consumer_index();
            }
        }
        if queue.outstanding() >= queue.parameters.entries && queue.is_followed {
            log::debug!("completion queue {number} overflows");
            self.fail_queue(number);
            return false;
        }
        let (address, phase) = queue.next_entry();
        if let Some(flags) = entry.get_mut(std::mem::offset_of!(CompletionCommon, flags)) {
            *flags = CompletionFlags::from_bits(*flags)
                .with_phase(phase)
                .into_bits();
        }
        queue.produced = queue.produced.wrapping_add(1);
        queue.kept.push_back((pair, address, entry));
        self.write_entries(number)
    }

    /// Writes the entries that were kept while bus mastering was off, in their original order.
    pub(super) fn write_kept(&mut self) {
        self.write_kept_counters();
        let queues = self.objects.completion_queues.iter();
        let queues: Vec<u16> = queues.map(|(number, _)| number).collect();
        for number in queues {
            self.write_entries(number);
        }
        let queues = self.objects.event_queues.iter();
        let queues: Vec<u16> = queues.map(|(number, _)| number).collect();
        for number in queues {
            self.write_events(number);
        }
    }

    /// Writes the entries of a completion queue, or keeps them while bus mastering is off. Returns
    /// `false` if the queue has failed.
    fn write_entries(&mut self, number: u16) -> bool {
        while let Ok(queue) = self.objects.completion_queues.get_mut(number) {
            let Some((pair, address, entry)) = queue.kept.front() else {
                self.announce(number);
                return true;
            };
            if self.local.transfers.keeps_entries() {
                return true;
            }
            let bytes = entry.get(..queue.parameters.entry_bytes).unwrap_or(entry);
            match self
                .local
                .transfers
                .write_entry(Origin::Queue(*pair), *address, bytes)
            {
                Ok(()) => drop(queue.kept.pop_front()),
                Err(_) if self.local.transfers.keeps_entries() => return true,
                Err(error) => {
                    log::debug!("completion queue {number}: {error}: {}", error.cause);
                    queue.kept.clear();
                    self.fail_queue(number);
                    return false;
                }
            }
        }
        false
    }

    /// Puts the queue pairs of a completion queue that takes no more completions in error.
    fn fail_queue(&mut self, number: u16) {
        if let Ok(queue) = self.objects.completion_queues.get_mut(number) {
            queue.has_failed = true;
        }
        self.objects
            .queue_pairs
            .fail_those(|pair| pair.completes_in(number));
    }

    /// Handles a write of a completion queue's doorbell by user space.
    pub(super) fn take_completion_doorbell(&mut self, number: u16, value: u32) {
        let value = CompletionDoorbell::from_bits(value);
        let Ok(queue) = self.objects.completion_queues.get_mut(number) else {
            return;
        };
        if queue.parameters.event_queue.is_none() {
            return;
        }
        queue.consumed = value.consumer_index();
        // An event that user space has not taken yet covers this one, too.
        if value.arm() && queue.last_event != Some(value.command_sn()) {
            queue.armed = Some(value.command_sn());
            self.announce(number);
        }
    }

    /// Writes an event, if this completion queue is armed and has completions.
    fn announce(&mut self, number: u16) {
        let Ok(queue) = self.objects.completion_queues.get_mut(number) else {
            return;
        };
        let (Some(armed), Some(events)) = (queue.armed, queue.parameters.event_queue) else {
            return;
        };
        if queue.outstanding() == 0 {
            return;
        }
        queue.armed = None;
        queue.last_event = Some(armed);
        if let Ok(events) = self.objects.event_queues.get_mut(events) {
            if !events.waiting.contains(&number) {
                events.waiting.push_back(number);
            }
        }
        self.write_events(events);
    }

    /// Handles the arming of an event queue: the driver has taken its events.
    pub(super) fn arm_event_queue(&mut self, number: u16) {
        let Ok(queue) = self.objects.event_queues.get_mut(number) else {
            return;
        };
        queue.is_armed = true;
        queue.since_armed = 0;
        self.write_events(number);
        self.interrupt(number);
    }

    /// Writes the waiting events, as far as there is room.
    fn write_events(&mut self, number: u16) {
        while let Ok(queue) = self.objects.event_queues.get_mut(number) {
            if self.local.transfers.keeps_entries() {
                break;
            }
            let next = queue.waiting.front().copied();
            let Some(completion_queue) = next.filter(|_| queue.has_room()) else {
                break;
            };
            let CreateEventQueue {
                entries, address, ..
            } = queue.parameters;
            let (address, phase) = ring_entry(address, entries, EVENT_BYTES, queue.produced);
            let entry = EventEntry {
                common: EventCommon::new().with_phase(phase),
                reserved: U32::ZERO,
                completion_queue: U16::new(completion_queue),
                reserved2: [0; 6],
            };
            let written =
                self.local
                    .transfers
                    .write_entry(Origin::Device, address, entry.as_bytes());
            if let Err(error) = written {
                // It is written again when the queue is armed or bus mastering is on.
                log::debug!("event queue {number}: {error}: {}", error.cause);
                break;
            }
            if let Ok(queue) = self.objects.event_queues.get_mut(number) {
                queue.waiting.pop_front();
                queue.produced = queue.produced.wrapping_add(1);
                queue.since_armed = queue.since_armed.saturating_add(1);
                queue.unannounced = queue.unannounced.saturating_add(1);
            }
        }
        self.interrupt(number);
    }

    /// Raises the interrupt of an event queue that is armed and has events that no interrupt has
    /// announced.
    fn interrupt(&mut self, number: u16) {
        let Ok(queue) = self.objects.event_queues.get_mut(number) else {
            return;
        };
        if queue.is_armed && queue.unannounced > 0 {
            queue.is_armed = false;
            queue.unannounced = 0;
            self.local.interrupts.raise(queue.parameters.vector);
        }
    }
}

fn common(
    request: u16,
    status: CompletionStatus,
    flags: CompletionFlags,
    pair: u16,
) -> CompletionCommon {
    CompletionCommon {
        req_id: U16::new(request),
        status: status as u8,
        flags,
        qp_num: U16::new(pair),
    }
}
