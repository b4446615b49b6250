//! The statuses of work requests.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The status of a work request (libibverbs, `enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Status(pub u32);

impl Status {
    /// It was executed.
    pub const SUCCESS: Self = Self(0);
    /// A message does not fit into its destination.
    pub const LOCAL_LENGTH: Self = Self(1);
    /// The adapter could not begin the request.
    pub const LOCAL_OPERATION: Self = Self(2);
    /// A local memory region does not permit it.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// The queue pair was stopped before it.
    pub const FLUSHED: Self = Self(5);
    /// The other side could not take a message.
    pub const BAD_RESPONSE: Self = Self(7);
    /// The other side refuses the request.
    pub const REMOTE_INVALID_REQUEST: Self = Self(9);
    /// The other side's memory region does not permit it.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The other side could not execute it.
    pub const REMOTE_OPERATION: Self = Self(11);
    /// The other side has posted no receive in time.
    pub const RECEIVER_NOT_READY: Self = Self(13);
    /// The other side has no such queue pair, or none that accepts the request.
    pub const REMOTE_BAD_QUEUE_PAIR: Self = Self(15);
    /// The other side has aborted the request.
    pub const REMOTE_ABORTED: Self = Self(16);
    /// The other side does not answer.
    pub const RESPONSE_TIMEOUT: Self = Self(20);
    /// An error without a specific status.
    pub const GENERAL: Self = Self(21);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::SUCCESS => "success",
            Self::LOCAL_LENGTH => "a local length error",
            Self::LOCAL_OPERATION => "a local queue pair operation error",
            Self::LOCAL_PROTECTION => "a local protection error",
            Self::FLUSHED => "a flush of its queue",
            Self::BAD_RESPONSE => "a bad response of the other side",
            Self::REMOTE_INVALID_REQUEST => "a remote invalid request error",
            Self::REMOTE_ACCESS => "a remote access error",
            Self::REMOTE_OPERATION => "a remote operation error",
            Self::REMOTE_ABORTED => "a remote abort",
            Self::RESPONSE_TIMEOUT => "a response time-out",
            Self::GENERAL => "a general error",
            Self::RECEIVER_NOT_READY => "the receiver not ready",
            Self::REMOTE_BAD_QUEUE_PAIR => "a bad queue pair of the other side",
            Self(number) => return write!(f, "status {number}"),
        };
        f.write_str(text)
    }
}
