//! Event counters: words in memory that the driver chooses, which count events of queue pairs.

use peerbar_efa_spec::admin::event_counter::QpEvents;
use peerbar_efa_spec::work::Operation;

/// Size of a counter's word.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Parameters of an event counter.
#[derive(Clone, Copy, Debug)]
pub struct CreateEventCounter {
    /// The UAR of its process.
    pub uar: u16,
    /// Address of its word, a multiple of 8.
    pub address: u64,
}

/// A change of an event counter (`efa_admin_event_counter_modify_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyEventCounter {
    /// Sets this value.
    Set(u64),
    /// Adds this to the value, which wraps around at [`u64::MAX`].
    Add(u64),
}

/// An event counter. The adapter keeps its value, so a guest's writes to the word have no effect on
/// it.
pub(crate) struct EventCounter {
    pub(crate) parameters: CreateEventCounter,
    pub(crate) value: u64,
    /// Number of queue pairs that it is attached to.
    pub(super) users: usize,
    /// `true` if its word must be written once bus mastering is on.
    pub(crate) is_kept: bool,
    /// `true` if its word could not be written: it counts no more.
    pub(crate) has_failed: bool,
}

/// A counter that is attached to a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    pub(super) counter: u16,
    /// The bits of [`QpEvents`].
    pub(super) events: u32,
}

/// An event of a queue pair that may be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePairEvent {
    /// A work request of its send queue has ended.
    Sent { operation: Operation, is_ok: bool },
    /// A receive has ended.
    Received { is_ok: bool },
    /// Another queue pair has completely read or written memory through it.
    Remote(Operation),
}

impl QueuePairEvent {
    /// Returns its bit of [`QpEvents`].
    pub(super) fn bit(self) -> u32 {
        use Operation::{FastInvalidate, FastRegister, RdmaRead, RdmaWrite, Send};
        let none = QpEvents::new();
        let event = match self {
            Self::Sent { operation, is_ok } => match (operation, is_ok) {
                (Send, true) => none.with_send(true),
                (Send, false) => none.with_send_error(true),
                (RdmaRead, true) => none.with_read(true),
                (RdmaRead, false) => none.with_read_error(true),
                (RdmaWrite, true) => none.with_write(true),
                (RdmaWrite, false) => none.with_write_error(true),
                (FastRegister | FastInvalidate, _) => none,
            },
            Self::Received { is_ok: true } => none.with_receive(true),
            Self::Received { is_ok: false } => none.with_receive_error(true),
            Self::Remote(RdmaRead) => none.with_remote_read(true),
            Self::Remote(RdmaWrite) => none.with_remote_write(true),
            Self::Remote(Send | FastRegister | FastInvalidate) => none,
        };
        event.into_bits().get()
    }
}

impl EventCounter {
    /// Returns its value after a change.
    pub(super) fn changed(&self, change: ModifyEventCounter) -> u64 {
        match change {
            ModifyEventCounter::Set(value) => value,
            ModifyEventCounter::Add(value) => self.value.wrapping_add(value),
        }
    }
}
