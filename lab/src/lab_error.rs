//! The reasons why a lab fails.

use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::anyhow;
use peerbar_flight::FlightError;
use thiserror::Error;

use crate::exit::{Failure, RunOutcome};
use crate::guest_program::ProgramError;
use crate::scenario::ScenarioError;
use crate::verdict::Ending;

/// The reason why a [`crate::Lab`] fails.
#[derive(Debug, Error)]
pub enum LabError {
    /// The scenario, or a check's table, makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// Something on the host is missing or fails: a program, QEMU, a kernel, a server, a file.
    #[error(transparent)]
    Host(#[from] Failure),
    /// The guest's agent gave up before it was ready; its diagnostics.
    #[error("the guest is not ready: {said}; its console is in {}", console.display())]
    NotReady {
        /// Its diagnostics.
        said: String,
        /// The log of the guest's console.
        console: PathBuf,
    },
    /// The guest ended by itself.
    #[error("the guest ended early: {message}")]
    GuestEnded {
        /// QEMU's status.
        status: ExitStatus,
        /// The reason: the console's line about a kernel problem, or else QEMU's status and the
        /// last line that it printed.
        message: String,
        /// The last lines of its console.
        console: Vec<String>,
        /// The folder of its run.
        folder: PathBuf,
    },
    /// The guest can no longer be followed for another reason.
    #[error("{0}")]
    Ended(Ending),
    /// The guest does not answer; the log of its console.
    #[error("the guest did not answer in time: see {}, or raise `timeout`", .0.display())]
    TimedOut(PathBuf),
    /// A command was not run to its end.
    #[error("{name}: {reason}")]
    CommandFailed {
        /// Its name in the report.
        name: String,
        /// The agent's reason.
        reason: String,
    },
    /// A program was not started, or not run to its end.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The scenario has no device of ours with that name.
    #[error("no device of the scenario that is served by peerbar has the name {0}")]
    NoDevice(String),
    /// A guest of several, by its name.
    #[error("{guest}: {source}")]
    OfGuest {
        /// Its name.
        guest: String,
        /// The error.
        source: Box<LabError>,
    },
    /// A flight record cannot be read.
    #[error("cannot read a flight record")]
    Flight(#[from] FlightError),
}

impl LabError {
    /// Returns the error, of the guest of this name.
    pub(crate) fn of_guest(self, guest: &str) -> Self {
        match self {
            // A signal is for the run, not for a guest.
            Self::Host(Failure::Interrupted(_)) | Self::OfGuest { .. } => self,
            source => Self::OfGuest {
                guest: guest.to_owned(),
                source: Box::new(source),
            },
        }
    }

    /// Returns `true` if it ended a run that was possible.
    pub(crate) fn is_of_run(&self) -> bool {
        match self {
            Self::NotReady { .. }
            | Self::GuestEnded { .. }
            | Self::Ended(_)
            | Self::TimedOut(_)
            | Self::Host(Failure::Interrupted(_)) => true,
            Self::OfGuest { source, .. } => source.is_of_run(),
            _ => false,
        }
    }

    /// Returns the outcome of a run that this has ended.
    pub(crate) fn outcome(&self) -> RunOutcome {
        match self {
            Self::NotReady { .. } | Self::GuestEnded { .. } => RunOutcome::GuestDied,
            Self::Ended(ending) => ending.outcome(),
            Self::TimedOut(_) => RunOutcome::TimedOut,
            Self::Host(Failure::Interrupted(signal)) => RunOutcome::Interrupted(*signal),
            Self::OfGuest { source, .. } => source.outcome(),
            _ => RunOutcome::Failed,
        }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Host(failure) => failure,
            LabError::Scenario(error) => error.into(),
            LabError::Ended(Ending::Stopped(reason)) => Self::Failed(anyhow!(reason)),
            other => Self::Environment(other.into()),
        }
    }
}

impl From<anyhow::Error> for LabError {
    fn from(error: anyhow::Error) -> Self {
        Self::Host(Failure::Environment(error))
    }
}
