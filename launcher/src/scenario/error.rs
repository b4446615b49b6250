//! Why a scenario is refused, with the place in its file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;

/// A scenario that cannot be run.
#[derive(Debug, Error)]
pub(crate) enum ScenarioError {
    /// The file cannot be read.
    #[error("{}: cannot read the scenario", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its contents are refused.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        message: String,
    },
}

/// What is wrong at a byte range of the file.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }

    /// Turns the byte range into a line of `text`.
    pub(super) fn locate(self, path: PathBuf, text: &str) -> ScenarioError {
        let before = text.get(..self.at.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        ScenarioError::Invalid {
            path,
            line,
            message: self.message,
        }
    }
}
