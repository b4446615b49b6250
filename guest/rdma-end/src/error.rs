//! What can go wrong between a conductor and an end.

use std::io;

use thiserror::Error as ThisError;

use crate::{Answer, Command, Status, WorkloadOutcome};

/// Result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A stream failed.
    #[error("cannot talk to an end of the transfer")]
    Stream(#[from] io::Error),
    /// The end closed its output.
    #[error("an end of the transfer has ended before its answer: its error output says why")]
    Ended,
    /// A line is no message.
    #[error(
        "an end of the transfer says {line:?}, which is no message: are both programs of one build?"
    )]
    NoMessage {
        /// The line's start.
        line: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The answer is not one of this command.
    #[error(
        "an end of the transfer answers {answer:?} to {command}: are both programs of one build?"
    )]
    Unexpected {
        /// The answer.
        answer: Box<Answer>,
        /// The command.
        command: String,
    },
    /// The end's memory has other bytes than it should.
    #[error("{side}: {reason}")]
    Contents {
        /// Which end.
        side: &'static str,
        /// Where, in words.
        reason: String,
    },
    /// The end could not do it.
    #[error("{side}: {reason}")]
    Failed {
        /// Which end.
        side: &'static str,
        /// Its reason.
        reason: String,
    },
    /// A work request failed.
    #[error("{side}: work request {id} ended with {status}")]
    Request {
        /// Which end.
        side: &'static str,
        /// The request's number.
        id: u64,
        /// Its status.
        status: Status,
    },
    /// A work request succeeded, and its completion is not that of what was asked.
    #[error("{side}: {wanted} completed as {seen}")]
    Completion {
        /// Which end.
        side: &'static str,
        /// What was asked.
        wanted: String,
        /// What came.
        seen: String,
    },
    /// There is a completion beside those of what was asked.
    #[error("{side}: {seen} came beside the completions of what was asked")]
    OneMore {
        /// Which end.
        side: &'static str,
        /// What came.
        seen: String,
    },
    /// A transfer needs more memory than an end has.
    #[error("a transfer of {length} bytes needs {needed} bytes of memory: the {side} has {size}")]
    TooSmall {
        /// Which end.
        side: &'static str,
        /// Bytes of the transfer.
        length: u32,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// A message is larger than an end takes.
    #[error("messages have {length} bytes, and the {side} takes {largest}: have it write or read")]
    LargeMessage {
        /// Which end.
        side: &'static str,
        /// Bytes of a message.
        length: u32,
        /// The largest that it takes.
        largest: u32,
    },
    /// What was to die could not be killed.
    #[error("cannot kill the part that is to die")]
    Kill(#[source] io::Error),
    /// Something was done that was to be refused, or refused otherwise.
    #[error("{0}")]
    Permitted(String),
    /// What became of messages is not what their sender learned.
    #[error("{0}")]
    Messages(String),
}

impl Error {
    /// What is wrong with this `answer` of `side`.
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

    /// Whether nothing more can be asked of an end.
    #[must_use]
    pub fn is_of_streams(&self) -> bool {
        matches!(
            self,
            Self::Stream(_) | Self::Ended | Self::NoMessage { .. } | Self::Unexpected { .. }
        )
    }

    /// An outcome of requests where one of receives was to come, or the other way.
    pub(crate) fn outcome(outcome: WorkloadOutcome) -> Self {
        Self::Unexpected {
            answer: Box::new(Answer::Outcome(outcome)),
            command: "Finish".to_owned(),
        }
    }
}

/// An error and what it came from, in one line. Control characters are blanks, as an end may have written some of it.
#[must_use]
pub fn in_one_line(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = sources.map(ToString::to_string).collect();
    words.join(": ").replace(char::is_control, " ")
}
