//! Event queues, which tell which completion queues have completions.

use std::collections::VecDeque;

use peerbar_efa_spec::completion::EVENT_BYTES;

use super::Objects;
use super::error::{ObjectError, ObjectKind, invalid};
use crate::limits;

/// Parameters of an event queue.
#[derive(Clone, Copy, Debug)]
pub struct CreateEventQueue {
    /// Number of entries, a power of two.
    pub entries: u16,
    /// Address of the entries.
    pub address: u64,
    /// The MSI-X vector that is raised.
    pub vector: u16,
}

/// An event queue. The driver reports no position, but it has taken all events when it arms the
/// queue.
pub(crate) struct EventQueue {
    pub(crate) address: u64,
    pub(crate) entries: u16,
    pub(crate) vector: u16,
    /// Number of entries that have been written, modulo 2^32.
    pub(crate) produced: u32,
    /// `true` if the next event raises the interrupt.
    pub(crate) is_armed: bool,
    /// Number of events since the last interrupt.
    pub(crate) unannounced: u32,
    /// Number of events since it was last armed.
    pub(crate) since_armed: u16,
    /// Completion queues whose events wait until it is armed.
    pub(crate) waiting: VecDeque<u16>,
}

impl EventQueue {
    /// Returns `true` if an event may be written now. Half of the entries may be written between
    /// two arms: of the entries before, the driver has taken all except those that it overlooked,
    /// which are at most as many.
    pub(crate) fn has_room(&self) -> bool {
        self.since_armed < self.entries / 2
    }
}

impl Objects {
    /// Creates an event queue, which is not armed. Returns its number.
    pub fn create_event_queue(&mut self, parameters: CreateEventQueue) -> Result<u16, ObjectError> {
        let CreateEventQueue {
            entries,
            address,
            vector,
        } = parameters;
        if !entries.is_power_of_two() || !(2..=limits::EVENT_QUEUE_ENTRIES).contains(&entries) {
            return Err(invalid("depth of an event queue", entries));
        }
        check_ring("address of an event queue", address, entries, EVENT_BYTES)?;
        self.event_queues.insert(EventQueue {
            address,
            entries,
            vector,
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
        if queues.any(|(_, queue)| queue.event_queue == Some(number)) {
            return Err(ObjectError::InUse {
                kind: ObjectKind::EventQueue,
                number: number.into(),
            });
        }
        self.event_queues.remove(number).map(|_| ())
    }
}

/// Fails if a ring's address is invalid: its entries may be written word by word, and none may wrap
/// around.
pub(super) fn check_ring(
    parameter: &'static str,
    address: u64,
    entries: u16,
    entry_bytes: usize,
) -> Result<(), ObjectError> {
    let bytes = u64::from(entries) * entry_bytes as u64;
    let fits = address.checked_add(bytes.saturating_sub(1)).is_some();
    if fits && address % entry_bytes as u64 == 0 {
        Ok(())
    } else {
        Err(invalid(parameter, address))
    }
}
