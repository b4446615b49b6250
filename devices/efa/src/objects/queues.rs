//! Creates and removes event queues and completion queues.

use std::collections::VecDeque;

use peerbar_efa_spec::completion::{ENTRY_BYTES, EVENT_BYTES, EXTENDED_ENTRY_BYTES};

use super::Objects;
use super::completion_queue::{CompletionQueue, CreateCompletionQueue, NEVER_WRITTEN};
use super::error::{ObjectError, ObjectKind, invalid};
use super::event_queue::{CreateEventQueue, EventQueue};
use super::rings::check_ring;
use crate::limits;
use crate::memory_bar::{self, Doorbell};

impl Objects {
    /// Creates an event queue, which is not armed. Returns its number.
    pub fn create_event_queue(&mut self, parameters: CreateEventQueue) -> Result<u16, ObjectError> {
        let CreateEventQueue {
            entries, address, ..
        } = parameters;
        if !entries.is_power_of_two() || !(2..=limits::EVENT_QUEUE_ENTRIES).contains(&entries) {
            return Err(invalid("depth of an event queue", entries));
        }
        check_ring("address of an event queue", address, entries, EVENT_BYTES)?;
        self.event_queues.insert(EventQueue {
            parameters,
            produced: 0,
            is_armed: false,
            unannounced: 0,
            since_armed: 0,
            waiting: VecDeque::new(),
        })
    }

    /// Removes an event queue. Fails while completion queues use it.
    pub fn destroy_event_queue(&mut self, number: u16) -> Result<(), ObjectError> {
        self.event_queues.get(number)?;
        let mut queues = self.completion_queues.iter();
        if queues.any(|(_, queue)| queue.parameters.event_queue == Some(number)) {
            return Err(ObjectError::in_use(ObjectKind::EventQueue, number));
        }
        self.event_queues.remove(number).map(|_| ())
    }

    /// Creates a completion queue. Returns its number, which is also that of its doorbell.
    pub fn create_completion_queue(
        &mut self,
        parameters: CreateCompletionQueue,
    ) -> Result<u16, ObjectError> {
        let CreateCompletionQueue {
            uar,
            entries,
            entry_bytes,
            address,
            event_queue,
            with_source_address,
        } = parameters;
        self.uars.get(uar)?;
        event_queue.map_or(Ok(()), |queue| self.event_queues.get(queue).map(|_| ()))?;
        let is_extended = entry_bytes == EXTENDED_ENTRY_BYTES;
        if !is_extended && (entry_bytes != ENTRY_BYTES || with_source_address) {
            return Err(invalid("length of a completion", entry_bytes as u64));
        }
        if !entries.is_power_of_two() || !(1..=limits::COMPLETION_QUEUE_ENTRIES).contains(&entries)
        {
            return Err(invalid("depth of a completion queue", entries));
        }
        check_ring(
            "address of a completion queue",
            address,
            entries,
            entry_bytes,
        )?;
        let number = self.completion_queues.insert(CompletionQueue {
            parameters,
            produced: 0,
            consumed: 0,
            is_followed: event_queue.is_some(),
            polled_doorbell: None,
            armed: None,
            last_event: None,
            kept: VecDeque::new(),
            has_failed: false,
        })?;
        self.uars.add_user(uar)?;
        if event_queue.is_none() {
            let offset = memory_bar::polled_doorbell(uar, number);
            self.completion_queues.get_mut(number)?.polled_doorbell = Some(offset);
            if let Err(error) = self.bar_memory.store(offset, NEVER_WRITTEN) {
                log::error!("doorbell of completion queue {number}: {error}");
            }
        }
        self.doorbells.open(uar, Doorbell::Completion(number));
        Ok(number)
    }

    /// Removes a completion queue. Fails while queue pairs use it.
    pub fn destroy_completion_queue(&mut self, number: u16) -> Result<(), ObjectError> {
        self.completion_queues.get(number)?;
        let mut pairs = self.queue_pairs.iter();
        if pairs.any(|pair| pair.completes_in(number)) {
            return Err(ObjectError::in_use(ObjectKind::CompletionQueue, number));
        }
        self.doorbells.close(Doorbell::Completion(number));
        let queue = self.completion_queues.remove(number)?;
        self.uars.remove_user(queue.parameters.uar);
        if let Some(events) = queue.parameters.event_queue {
            if let Ok(events) = self.event_queues.get_mut(events) {
                events.waiting.retain(|waiting| *waiting != number);
            }
        }
        Ok(())
    }
}
