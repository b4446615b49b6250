//! Completion queues, event queues and queue pairs.

use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::completion_queue::{CreateCq, CreatedCq, DestroyCq};
use peerbar_efa_spec::admin::event_queue::{COMPLETION_EVENTS, CreateEq, EqNumber};
use peerbar_efa_spec::admin::queue_pair::{
    CreateQp, CreatedQp, ModifyQp, QpHandle, QueriedQp, transport,
};
use peerbar_efa_spec::completion::EVENT_BYTES;

use super::{DONE, answer, possible, reserved};
use crate::admin_queue::{Answer, Command};
use crate::efa::VECTORS;
use crate::engine::Engine;
use crate::memory_bar::{Doorbell, QUEUE_PAIRS, polled_doorbell, send_queue};
use crate::objects::{
    CreateCompletionQueue, CreateEventQueue, CreateQueuePair, ModifyQueuePair, QueuePairKind,
    QueuePairState,
};

/// Flag of the answer to Create CQ: the doorbell is valid.
const DOORBELL_VALID: u32 = 1;
/// Size of the words in which entry sizes are given.
const WORD_BYTES: usize = 4;

impl Engine {
    pub(super) fn create_completion_queue(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateCq>()?;
        let (first, second) = (parameters.caps_1, parameters.caps_2);
        reserved(first.reserved_low() == 0 && !first.reserved_high() && !second.reserved())?;
        // Queues in memory regions are not supported.
        possible(!first.is_virtual())?;
        possible(parameters.parts.get() == 1)?;
        let (uar, depth) = (parameters.uar.get(), parameters.depth.get());
        let has_events = first.interrupts();
        let number = self
            .data
            .objects()
            .create_completion_queue(CreateCompletionQueue {
                uar,
                entries: depth,
                entry_bytes: usize::from(second.entry_words()) * WORD_BYTES,
                address: parameters.address.get(),
                event_queue: has_events.then_some(parameters.eq.get()),
                with_source_address: second.source_address(),
            })?;
        Ok(answer(&CreatedCq {
            cq: number.into(),
            depth: depth.into(),
            doorbell: completion_doorbell(uar, number, has_events).into(),
            flags: DOORBELL_VALID.into(),
        }))
    }

    pub(super) fn destroy_completion_queue(&mut self, command: &Command) -> Result<Answer, Status> {
        let number = command.view::<DestroyCq>()?.cq.get();
        self.data.objects().destroy_completion_queue(number)?;
        Ok(DONE)
    }

    pub(super) fn create_event_queue(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateEq>()?;
        let entry_bytes = usize::from(parameters.entry_words) * WORD_BYTES;
        possible(entry_bytes == EVENT_BYTES)?;
        possible(parameters.events.get() == COMPLETION_EVENTS)?;
        let vector = u16::from(parameters.vector);
        possible(vector < VECTORS)?;
        let number = self.data.objects().create_event_queue(CreateEventQueue {
            entries: parameters.depth.get(),
            address: parameters.address.get(),
            vector,
        })?;
        Ok(answer(&EqNumber {
            eq: number.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_event_queue(&mut self, command: &Command) -> Result<Answer, Status> {
        let number = command.view::<EqNumber>()?.eq.get();
        self.data.objects().destroy_event_queue(number)?;
        Ok(DONE)
    }

    pub(super) fn create_queue_pair(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateQp>()?;
        let flags = parameters.flags;
        reserved(flags.reserved() == 0)?;
        // Queues in memory regions are not supported.
        possible(!flags.sq_virtual() && !flags.rq_virtual())?;
        let uar = parameters.uar.get();
        let number = self.data.objects().create_queue_pair(CreateQueuePair {
            kind: kind(parameters.transport)?,
            protection_domain: parameters.pd.get(),
            uar,
            send_completions: parameters.send_cq.get(),
            receive_completions: parameters.receive_cq.get(),
            send_entries: ring_entries(parameters.sq_depth.get())?,
            send_bytes: parameters.sq_bytes.get(),
            receive_address: parameters.rq_address.get(),
            receive_bytes: parameters.rq_bytes.get(),
            unsolicited_writes: flags.unsolicited_write_recv(),
        })?;
        let slot = number % QUEUE_PAIRS;
        Ok(answer(&CreatedQp {
            handle: u32::from(number).into(),
            number: number.into(),
            reserved: 0.into(),
            send_sub_cq: 0.into(),
            receive_sub_cq: 0.into(),
            sq_doorbell: doorbell(uar, Doorbell::Send(slot)).into(),
            rq_doorbell: doorbell(uar, Doorbell::Receive(slot)).into(),
            sq_offset: offset(send_queue(slot)).into(),
        }))
    }

    pub(super) fn modify_queue_pair(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<ModifyQp>()?;
        let mask = parameters.mask;
        reserved(mask.reserved() == 0)?;
        // The adapter posts no event when the send queue has drained.
        possible(!mask.sq_drained_notify() || parameters.sq_drained_notify == 0)?;
        let number = number(parameters.handle.get())?;
        let state = |field: u32| QueuePairState::from_number(field).ok_or(Status::IllegalParameter);
        let next = state(parameters.state.get());
        let changes = ModifyQueuePair {
            state: if mask.state() { Some(next?) } else { None },
            qkey: mask.qkey().then_some(parameters.qkey.get()),
            sq_psn: mask.sq_psn().then_some(parameters.sq_psn.get()),
            rnr_retry: mask.rnr_retry().then_some(parameters.rnr_retry),
        };
        // The current state that the driver names is ignored: the queue pair may have failed since.
        self.data.objects().modify_queue_pair(number, changes)?;
        Ok(DONE)
    }

    pub(super) fn query_queue_pair(&mut self, command: &Command) -> Result<Answer, Status> {
        let number = number(command.view::<QpHandle>()?.handle.get())?;
        let attributes = self.data.objects().query_queue_pair(number)?;
        Ok(answer(&QueriedQp {
            state: (attributes.state as u32).into(),
            qkey: attributes.qkey.into(),
            sq_psn: attributes.sq_psn.into(),
            sq_draining: attributes.is_draining.into(),
            rnr_retry: attributes.rnr_retry,
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_queue_pair(&mut self, command: &Command) -> Result<Answer, Status> {
        let number = number(command.view::<QpHandle>()?.handle.get())?;
        self.data.objects().destroy_queue_pair(number)?;
        Ok(DONE)
    }
}

fn kind(number: u8) -> Result<QueuePairKind, Status> {
    match number {
        transport::UD => Ok(QueuePairKind::Datagram),
        transport::SRD => Ok(QueuePairKind::ReliableDatagram),
        _ => Err(Status::IllegalParameter),
    }
}

/// Returns the number of a queue pair, which is also its handle.
fn number(handle: u32) -> Result<u16, Status> {
    u16::try_from(handle).map_err(|_| Status::IllegalParameter)
}

/// Returns the number of entries of the ring that user space makes for a queue of this depth.
fn ring_entries(depth: u32) -> Result<u32, Status> {
    match depth {
        0 => Ok(0),
        _ => depth
            .checked_next_power_of_two()
            .ok_or(Status::IllegalParameter),
    }
}

/// Returns the offset of a completion queue's doorbell. The doorbell of a queue without events is
/// in memory, where writing it costs the guest no exit.
fn completion_doorbell(uar: u16, number: u16, has_events: bool) -> u32 {
    if has_events {
        doorbell(uar, Doorbell::Completion(number))
    } else {
        offset(polled_doorbell(uar, number))
    }
}

fn doorbell(uar: u16, doorbell: Doorbell) -> u32 {
    offset(doorbell.offset(uar))
}

/// Returns an offset in BAR2, which is smaller than 4 GiB.
fn offset(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_has_a_power_of_two_of_entries() {
        assert_eq!(ring_entries(0), Ok(0));
        assert_eq!(ring_entries(100), Ok(128));
        assert_eq!(ring_entries(128), Ok(128));
        assert_eq!(ring_entries(u32::MAX), Err(Status::IllegalParameter));
    }
}
