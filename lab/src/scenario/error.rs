//! Why a scenario is refused, with the line of its file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use peerbar_report::TableError;
use thiserror::Error;

use crate::exit::Failure;

/// A scenario that cannot be run.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// There is no such file, nor a shipped scenario of that name.
    #[error("there is no scenario {}: {way_out}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name that was probably meant, or how to find one.
        way_out: String,
    },
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
    /// What a [`super::ScenarioBuilder`] was told is refused.
    #[error("scenario `{scenario}`, {table}: {message}")]
    Built {
        /// The name that the builder has.
        scenario: String,
        /// What it was told it in, as `[[nvme]] d0`.
        table: String,
        /// What is wrong, and what is allowed.
        message: String,
    },
}

/// A mistake in a scenario is the user's.
impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Self {
        Self::Usage(error.into())
    }
}

/// What is wrong at a byte range of the file.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    /// What else of the file has a part in it.
    other: Option<Range<usize>>,
    pub(super) message: String,
    /// The name that stands at `at` by mistake for this one.
    pub(super) meant: Option<String>,
}

impl From<toml::de::Error> for Problem {
    fn from(error: toml::de::Error) -> Self {
        TableError::of_toml(&error, 0..0).into()
    }
}

impl From<TableError> for Problem {
    fn from(error: TableError) -> Self {
        Self {
            meant: error.meant,
            ..Self::new(error.at, error.message)
        }
    }
}

impl Problem {
    pub(super) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            at,
            other: None,
            message: message.into(),
            meant: None,
        }
    }

    /// The problem, which `other` has a part in.
    pub(super) fn with(mut self, other: Range<usize>) -> Self {
        self.other = Some(other);
        self
    }

    /// The problem in what follows a header of this number of bytes.
    pub(super) fn without_header(self, bytes: usize) -> Self {
        let moved = |at: Range<usize>| at.start.saturating_sub(bytes)..at.end.saturating_sub(bytes);
        Self {
            at: moved(self.at),
            other: self.other.map(moved),
            ..self
        }
    }

    /// Turns byte ranges into lines of `text`.
    pub(super) fn locate(self, path: PathBuf, text: &str) -> ScenarioError {
        let line = line(&self.at, text);
        let message = match self.other {
            Some(other) => format!("{} (see line {})", self.message, self::line(&other, text)),
            None => self.message,
        };
        ScenarioError::Invalid {
            path,
            line,
            message,
        }
    }
}

/// The line of `text` in which `at` starts, counted from 1.
fn line(at: &Range<usize>, text: &str) -> usize {
    let before = text.get(..at.start).unwrap_or(text);
    before.matches('\n').count() + 1
}
