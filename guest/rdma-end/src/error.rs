//! The errors between a conductor and an end.

use std::io;

use thiserror::Error as ThisError;

use crate::load::WorkloadOutcome;
use crate::message::{Answer, Command};
use crate::status::Status;

/// Result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error between a conductor and an end.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A stream failed.
    #[error("cannot talk to an end of the transfer")]
    Stream(#[from] io::Error),
    /// The end closed its output.
    #[error("an end of the transfer has ended before its answer: its error output says why")]
    Ended,
    /// A line is not a message.
    #[error(
        "an end of the transfer sent {line:?}, which is not a message: are both programs from the same build?"
    )]
    NoMessage {
        /// The line's start.
        line: String,
        /// The mistake in it.
        source: serde_json::Error,
    },
    /// The answer does not belong to this command.
    #[error(
        "an end of the transfer answers {answer:?} to {command}: are both programs from the same build?"
    )]
    Unexpected {
        /// The answer.
        answer: Box<Answer>,
        /// The command.
        command: String,
    },
    /// The end's memory has unexpected content.
    #[error("{side}: {reason}")]
    Contents {
        /// The end.
        side: &'static str,
        /// The location, in words.
        reason: String,
    },
    /// The end could not execute a command.
    #[error("{side}: {reason}")]
    Failed {
        /// The end.
        side: &'static str,
        /// Its reason.
        reason: String,
    },
    /// A work request failed.
    #[error("{side}: work request {id} ended with {status}")]
    Request {
        /// The end.
        side: &'static str,
        /// The request's number.
        id: u64,
        /// Its status.
        status: Status,
    },
    /// A work request succeeded, but its completion does not match the request.
    #[error("{side}: {wanted} completed as {seen}")]
    Completion {
        /// The end.
        side: &'static str,
        /// The expected completion.
        wanted: String,
        /// The actual completion.
        seen: String,
    },
    /// There is a completion beyond those of the requests.
    #[error("{side}: {seen} came in addition to the completions of the requests")]
    OneMore {
        /// The end.
        side: &'static str,
        /// The actual completion.
        seen: String,
    },
    /// A transfer needs more memory than an end has.
    #[error("a transfer of {length} bytes needs {needed} bytes of memory: the {side} has {size}")]
    TooSmall {
        /// The end.
        side: &'static str,
        /// Length of the transfer in bytes.
        length: u32,
        /// Required bytes.
        needed: u64,
        /// Existing bytes.
        size: u64,
    },
    /// A message is larger than an end accepts.
    #[error("messages have {length} bytes, and the {side} takes {largest}: have it write or read")]
    LargeMessage {
        /// The end.
        side: &'static str,
        /// Length of the message in bytes.
        length: u32,
        /// The largest length that it accepts.
        largest: u32,
    },
    /// The part to be lost could not be killed.
    #[error("cannot kill the part that must die")]
    Kill(#[source] io::Error),
    /// A request that must be refused succeeded, or was refused with another status.
    #[error("{0}")]
    Permitted(String),
    /// The fate of messages differs from their sender's knowledge.
    #[error("{0}")]
    Messages(String),
}

impl Error {
    /// Returns the error for this `answer` of `side`.
    pub(crate) fn of(answer: Answer, command: &Command, side: &'static str) -> Self {
        match answer {
            Answer::Failed { reason } => Self::Failed { side, reason },
            Answer::Differs { reason } => Self::Contents { side, reason },
            answer => Self::Unexpected {
                answer: Box::new(answer),
                command: format!("{command:?}"),
            },
        }
    }

    /// Returns `true` if an end cannot be asked any more.
    #[must_use]
    pub fn is_of_streams(&self) -> bool {
        matches!(
            self,
            Self::Stream(_) | Self::Ended | Self::NoMessage { .. } | Self::Unexpected { .. }
        )
    }

    /// Returns the error for an outcome of requests in place of one of receives, or the reverse.
    pub(crate) fn outcome(outcome: WorkloadOutcome) -> Self {
        Self::Unexpected {
            answer: Box::new(Answer::Outcome(outcome)),
            command: "Finish".to_owned(),
        }
    }
}

/// Returns an error and its causes in one line. Control characters become blanks, since an end may
/// have written some of it.
#[must_use]
pub fn in_one_line(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = sources.map(ToString::to_string).collect();
    words.join(": ").replace(char::is_control, " ")
}
