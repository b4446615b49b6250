//! What is started.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most words and settings of a request.
const MOST: usize = 4096;
/// Longest word, name or value in bytes: the kernel's own limit (execve(2), MAX_ARG_STRLEN).
const LONGEST: usize = 128 << 10;

/// A program to be started in the guest's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRequest {
    /// The program and its arguments, in which `{disk0}` and the like stand for the guest's names. A program without a slash is
    /// looked for on `PATH`. None: root's shell.
    pub words: Vec<String>,
    /// The folder that it starts in, `/` if none.
    #[serde(default)]
    pub folder: Option<String>,
    /// Environment variables beside the guest's own.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The size of its terminal, if it has one. Without, its streams are pipes.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Folders that the guest removes once the program has ended, however that was. What is left of the program's process group is killed
    /// first.
    #[serde(default)]
    pub temporary: Vec<String>,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// Why a request can start nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// It has too many words.
    #[error("{0} words and settings: at most {MOST} are allowed")]
    TooMany(usize),
    /// One is too long.
    #[error("a word of {0} bytes: at most {LONGEST} are allowed")]
    TooLong(usize),
    /// One cannot be given to a program.
    #[error("{0:?} has a zero byte, or is no name of a variable")]
    Malformed(String),
}

impl ProgramRequest {
    /// A request with these words and nothing else.
    pub fn new(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            words: words.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Whether the kernel can take it.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self) -> Result<(), RequestError> {
        let count = self.words.len().saturating_add(self.environment.len());
        if count > MOST {
            return Err(RequestError::TooMany(count));
        }
        let names = self.environment.keys();
        if let Some(name) = names
            .clone()
            .find(|name| name.is_empty() || name.contains('='))
        {
            return Err(RequestError::Malformed(name.clone()));
        }
        let texts = self.words.iter().chain(names);
        for text in texts.chain(self.environment.values()).chain(&self.folder) {
            if text.len() > LONGEST {
                return Err(RequestError::TooLong(text.len()));
            }
            if text.contains('\0') {
                return Err(RequestError::Malformed(text.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_no_kernel_takes_is_refused() {
        let request = |words: &[&str]| ProgramRequest::new(words.iter().copied());
        assert_eq!(request(&["ls", "-l", ""]).check(), Ok(()));
        let wrong = request(&["a\0b"]).check();
        assert_eq!(wrong, Err(RequestError::Malformed("a\0b".into())));
        let long = "x".repeat(LONGEST + 1);
        let wrong = request(&[&long]).check();
        assert_eq!(wrong, Err(RequestError::TooLong(LONGEST + 1)));
        let wrong = ProgramRequest::new(vec!["x"; MOST + 1]).check();
        assert_eq!(wrong, Err(RequestError::TooMany(MOST + 1)));
        for name in ["", "A=B", "A\0"] {
            let mut request = request(&["ls"]);
            request.environment.insert(name.into(), "x".into());
            let wrong = Err(RequestError::Malformed(name.into()));
            assert_eq!(request.check(), wrong);
        }
    }
}
