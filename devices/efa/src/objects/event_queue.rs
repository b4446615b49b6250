//! Event queues, which tell which completion queues have completions.

use std::collections::VecDeque;

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
    pub(crate) parameters: CreateEventQueue,
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
        self.since_armed < self.parameters.entries / 2
    }
}
