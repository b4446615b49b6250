//! Why an object is not created, changed, found or removed.

use std::fmt;

use thiserror::Error;

use super::queue_pair::QueuePairState;

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

/// Why a request about objects is refused. Nothing has been changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// There are as many as there may be.
    #[error("{kind}: all {limit} are in use: remove one first")]
    Exhausted {
        /// What was to be created.
        kind: ObjectKind,
        /// How many there may be; of memory regions, also how many pages.
        limit: usize,
    },
    /// There is none of this number.
    #[error("{kind} {number} does not exist")]
    Unknown {
        /// What was looked for.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// Other objects use it.
    #[error("{kind} {number} is in use: remove what uses it first")]
    InUse {
        /// What was to be removed.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// It has failed for good.
    #[error("{kind} {number} has failed: create another one")]
    Failed {
        /// What was to be used.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// Its memory cannot be written.
    #[error("memory of {kind} {number} cannot be written: name memory that the adapter reaches")]
    Unreachable {
        /// What was to be created or changed.
        kind: ObjectKind,
        /// Its number.
        number: u32,
    },
    /// A parameter has a value that it cannot have.
    #[error("{parameter} {value:#x} is not possible")]
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
        /// The state that was asked for.
        to: QueuePairState,
    },
}

/// An impossible value of a parameter.
pub(super) fn invalid(parameter: &'static str, value: impl Into<u64>) -> ObjectError {
    ObjectError::Invalid {
        parameter,
        value: value.into(),
    }
}
