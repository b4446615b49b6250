//! The reason why a scenario is rejected, with the line of its file.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use peerbar_report::TableError;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A scenario that cannot be run.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// There is neither such a file nor a shipped scenario of that name.
    #[error("scenario {} not found: {way_out}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name that was probably meant, or how to find one.
        way_out: String,
    },
    /// The file cannot be read.
    #[error("{}: cannot read the scenario: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Its contents are rejected.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// The mistake, and the allowed values.
        message: String,
        /// The contents.
        text: Arc<str>,
    },
    /// The lines of a check that a lab is given are rejected.
    #[error("check:{line}: {message}")]
    Check {
        /// Number of the line, from 1.
        line: usize,
        /// The mistake, and the allowed values.
        message: String,
    },
    /// The input of a [`super::ScenarioBuilder`] is rejected.
    #[error("scenario `{scenario}`, {table}: {message}")]
    Built {
        /// The name that the builder has.
        scenario: String,
        /// The table with the mistake, such as `[[nvme]] d0`.
        table: String,
        /// The mistake, and the allowed values.
        message: String,
    },
}

/// A mistake at a byte range of the file.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    /// Another range of the file that is involved.
    other: Option<Range<usize>>,
    pub(super) message: String,
    /// The correct name, if that at `at` is misspelt.
    pub(super) meant: Option<String>,
    /// The key that is missing at `at`.
    pub(super) missing: Option<String>,
}

impl From<toml::de::Error> for Problem {
    fn from(error: toml::de::Error) -> Self {
        TableError::of_toml(&error, None, 0..0).into()
    }
}

impl From<TableError> for Problem {
    fn from(error: TableError) -> Self {
        Self {
            meant: error.meant,
            missing: error.missing,
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
            missing: None,
        }
    }

    /// Returns the problem with a value of `document`. The message names its key.
    pub(super) fn of_toml(error: &toml::de::Error, document: &DeTable<'_>) -> Self {
        let at = error.span().unwrap_or_default();
        TableError::of_toml(error, key_of(document, &at), at).into()
    }

    /// Returns the problem with a value of `settings`, whose message begins with the key.
    pub(super) fn of_setting(error: &toml::de::Error, settings: &DeTable<'_>) -> Self {
        let problem = Self::of_toml(error, settings);
        let key = key_of(settings, &problem.at);
        match key.filter(|key| !problem.message.contains(&format!("`{key}`"))) {
            Some(key) => Self {
                message: format!("`{key}`: {}", problem.message),
                ..problem
            },
            None => problem,
        }
    }

    /// Returns the problem, in which `other` is involved.
    pub(super) fn with(mut self, other: Range<usize>) -> Self {
        self.other = Some(other);
        self
    }

    /// Returns the problem relative to the text after a header with this number of bytes.
    pub(super) fn without_header(self, bytes: usize) -> Self {
        let moved = |at: Range<usize>| at.start.saturating_sub(bytes)..at.end.saturating_sub(bytes);
        Self {
            at: moved(self.at),
            other: self.other.map(moved),
            ..self
        }
    }

    /// Returns the error about the file at `path`, which has the contents `text`.
    pub(super) fn locate(self, path: PathBuf, text: impl Into<Arc<str>>) -> ScenarioError {
        let text = text.into();
        let (line, message) = self.with_line(&text);
        ScenarioError::Invalid {
            path,
            line,
            message,
            text,
        }
    }

    /// Returns the line of the problem in `text`, and its message.
    pub(super) fn with_line(self, text: &str) -> (usize, String) {
        let message = match self.other {
            Some(other) => format!("{} (see line {})", self.message, line(&other, text)),
            None => self.message,
        };
        (line(&self.at, text), message)
    }
}

/// Returns the innermost key of `table` whose value has the bytes `at`.
fn key_of<'d>(table: &'d DeTable<'_>, at: &Range<usize>) -> Option<&'d str> {
    let is_around = |value: &Spanned<DeValue<'_>>| {
        let span = value.span();
        span.start <= at.start && at.end <= span.end
    };
    table.iter().find_map(|(key, value)| {
        let inner = match value.get_ref() {
            DeValue::Table(inner) => key_of(inner, at),
            DeValue::Array(elements) => {
                let mut tables = elements.iter().filter_map(|one| one.get_ref().as_table());
                tables.find_map(|inner| key_of(inner, at))
            }
            _ => None,
        };
        inner.or_else(|| is_around(value).then_some(key.get_ref().as_ref()))
    })
}

/// Returns the line of `text` in which `at` starts, counted from 1.
fn line(at: &Range<usize>, text: &str) -> usize {
    let before = text.get(..at.start).unwrap_or(text);
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use crate::exit::Failure;
    use crate::scenario::Scenario;

    #[test]
    fn failure_points_to_all_mistakes_where_there_are_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a b.toml");
        let said = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let error = Scenario::load(&file).unwrap_err();
            // The mistakes are those of the text that was read.
            std::fs::remove_file(&file).unwrap();
            Failure::from(error).to_string()
        };
        let disk = "name = \"x\"\n[[nvme]]\nname = \"d0\"\nnamespaces = [{ ram = \"1M\" }]\n\
                    [[check]]\nkind = \"controller-reset\"\ndevice = \"d7\"\n";
        let one = said(disk);
        assert!(
            one.ends_with("no [[nvme]] is named `d7`: there is `d0`"),
            "{one}"
        );
        let two = said(&disk.replace("1M", "1Q"));
        let all = format!(
            " (`peerbar check '{}'` shows all 2 mistakes)",
            file.display()
        );
        assert!(two.ends_with(&all), "{two}");
        let misspelt = said(&disk.replace("namespaces", "namespace"));
        let all = format!("did you mean `namespaces`?{all}");
        assert!(misspelt.ends_with(&all), "{misspelt}");
    }
}
