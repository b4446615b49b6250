//! The reasons why an object is not created, changed, found or removed.

use std::fmt;

use thiserror::Error;

use super::queue_pair_state::QueuePairState;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A page of doorbells.
    Uar,
    /// A protection domain.
    ProtectionDomain,
    /// The address of another adapter.
    AddressHandle,
    /// An event queue.
    EventQueue,
    /// A completion queue.
    CompletionQueue,
    /// A queue pair.
    QueuePair,
    /// A memory region.
    MemoryRegion,
    /// An event counter.
    EventCounter,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uar => "UAR",
            Self::ProtectionDomain => "protection domain",
            Self::AddressHandle => "address handle",
            Self::EventQueue => "event queue",
            Self::CompletionQueue => "completion queue",
            Self::QueuePair => "queue pair",
            Self::MemoryRegion => "memory region",
            Self::EventCounter => "event counter",
        })
    }
}

/// The reason why a request about objects is refused. Nothing has been changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The maximum number exists already.
    #[error("{kind}: all {limit} are in use: remove one first")]
    Exhausted {
        /// The object to create.
        kind: ObjectKind,
        /// The maximum number; for memory regions, also that of pages.
        limit: usize,
    },
    /// No object has this number.
    #[error("{kind} {number} does not exist")]
    Unknown {
        /// The object to find.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// Other objects use it.
    #[error("{kind} {number} is in use: remove its users first")]
    InUse {
        /// The object to remove.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// It has failed permanently.
    #[error("{kind} {number} has failed: create another one")]
    Failed {
        /// The object to use.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// Its memory cannot be written.
    #[error("memory of {kind} {number} cannot be written: name memory that the adapter reaches")]
    Unreachable {
        /// The object to create or change.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// A parameter has an invalid value.
    #[error("invalid {parameter} {value:#x}")]
    Invalid {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        value: u64,
    },
    /// A queue pair cannot go from its state to that one.
    #[error("queue pair in state {from:?} cannot go to {to:?}")]
    Transition {
        /// Its state.
        from: QueuePairState,
        /// The requested state.
        to: QueuePairState,
    },
}

impl ObjectError {
    /// Returns the error for an object that does not exist.
    pub(super) fn unknown(kind: ObjectKind, number: impl Into<u32>) -> Self {
        let number = number.into();
        Self::Unknown { kind, number }
    }

    /// Returns the error for an object that others use.
    pub(super) fn in_use(kind: ObjectKind, number: impl Into<u32>) -> Self {
        let number = number.into();
        Self::InUse { kind, number }
    }
}

/// Returns the error for an invalid value of a parameter.
pub(super) fn invalid(parameter: &'static str, value: impl Into<u64>) -> ObjectError {
    ObjectError::Invalid {
        parameter,
        value: value.into(),
    }
}
