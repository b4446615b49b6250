//! The mistakes in requests that an end keeps in progress.

use thiserror::Error as ThisError;

use crate::arrivals::ArrivalError;
use crate::error::Error;
use crate::status::Status;

/// Limit of the requests that may succeed: the loss comes sooner.
pub(crate) const MOST: u64 = if cfg!(test) { 1 << 8 } else { 1 << 20 };

/// A mistake in requests that an end kept in progress.
#[derive(Debug, ThisError)]
pub(crate) enum WorkloadError {
    #[error("all slots are in use")]
    AllInUse,
    #[error("request {id} completed, and is not in progress")]
    NotInProgress { id: u64 },
    #[error("request {id} ended with {status}, not with {}", wanted.unwrap_or(Status::SUCCESS))]
    OtherStatus {
        id: u64,
        status: Status,
        wanted: Option<Status>,
    },
    #[error("receive {id} ended with {status}")]
    ReceiveFailed { id: u64, status: Status },
    #[error("a request failed before anything died")]
    Early,
    #[error("{MOST} requests have succeeded, and none has failed since the death was asked for")]
    NoneFailed,
    #[error("a request succeeds after all others failed")]
    Afterwards,
    #[error("receive {id} completed as no message of a sender here: {completed}")]
    NoMessage { id: u64, completed: String },
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error("message {id} in slot {slot}")]
    Torn {
        id: u64,
        slot: u32,
        #[source]
        source: Error,
    },
    #[error("nothing is in progress: start first")]
    NotStarted,
    #[error("cannot ask the end")]
    End(#[from] Error),
}
