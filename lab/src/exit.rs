//! The exit codes of the command.

use std::fmt;
use std::process::ExitCode;

use peerbar_images::ImageError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::temporary_folder::TemporaryFolderError;
use crate::terminal::say;

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Outcome")]
pub enum RunOutcome {
    /// Every check passed.
    Passed,
    /// A check failed, or the run as a whole is not clean.
    Failed,
    /// The time limit passed.
    TimedOut,
    /// The guest ended before its report did.
    GuestDied,
    /// A signal of this number ended the run.
    Interrupted(i32),
}

impl RunOutcome {
    /// Exit code; signals as a shell counts them.
    pub fn code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::TimedOut => 124,
            Self::GuestDied => 255,
            Self::Interrupted(signal) => {
                u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
            }
        }
    }
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed => f.write_str("failed"),
            Self::TimedOut => f.write_str("timed out"),
            Self::GuestDied => f.write_str("guest died"),
            Self::Interrupted(_) => f.write_str("interrupted"),
        }
    }
}

/// The reason why the command has failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The attempt has failed, for example because of a missing file.
    #[error("{0:#}")]
    Failed(anyhow::Error),
    /// The user has asked for something impossible.
    #[error("{0:#}")]
    Usage(anyhow::Error),
    /// The machine lacks something, or refuses it.
    #[error("{0:#}")]
    Environment(anyhow::Error),
    /// A signal of this number came first.
    #[error("ended by signal {0}")]
    Interrupted(i32),
}

impl Failure {
    /// Exit code (sysexits.h: 69 is `EX_UNAVAILABLE`).
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Environment(_) => 69,
            Self::Interrupted(signal) => RunOutcome::Interrupted(*signal).code(),
        }
    }

    /// Prints the reason on one line of stderr and returns the exit code.
    pub fn report(&self) -> ExitCode {
        say(format_args!("peerbar: {self}"));
        ExitCode::from(self.code())
    }
}

/// Errors that are not known to be the user's are attributed to the machine.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Environment(error)
    }
}

impl From<TemporaryFolderError> for Failure {
    fn from(error: TemporaryFolderError) -> Self {
        Self::Environment(error.into())
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Environment(error.into())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn outcomes_have_the_documented_codes() {
        let outcomes = [
            RunOutcome::Passed,
            RunOutcome::Failed,
            RunOutcome::TimedOut,
            RunOutcome::GuestDied,
            RunOutcome::Interrupted(2),
            RunOutcome::Interrupted(15),
        ];
        assert_eq!(outcomes.map(RunOutcome::code), [0, 1, 124, 255, 130, 143]);
    }

    #[test]
    fn failures_have_the_documented_codes() {
        assert_eq!(Failure::Failed(anyhow!("x")).code(), 1);
        assert_eq!(Failure::Usage(anyhow!("x")).code(), 2);
        assert_eq!(Failure::from(anyhow!("x")).code(), 69);
        assert_eq!(Failure::Interrupted(2).code(), 130);
    }
}
