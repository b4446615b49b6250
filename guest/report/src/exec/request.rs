//! A request to start a program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Limit of the words and settings of a request.
const MOST: usize = 4096;
/// Longest word, name or value in bytes: the kernel's own limit (execve(2), MAX_ARG_STRLEN).
const LONGEST: usize = 128 << 10;

/// A program to start in the guest's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRequest {
    /// The program and its arguments, in which `{disk0}` and the like are placeholders for the
    /// guest's names. A program without a slash is searched on `PATH`. Empty: root's shell.
    pub words: Vec<String>,
    /// Its working directory; `/` if `None`.
    #[serde(default)]
    pub folder: Option<String>,
    /// Environment variables in addition to the guest's own.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The size of its terminal. Without one, its streams are pipes.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Folders that the guest removes once the program has ended in any way. The rest of the
    /// program's process group is killed first.
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

/// The reason why a request can start nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// There are too many words.
    #[error("{0} words and settings: at most {MOST} are allowed")]
    TooMany(usize),
    /// A word is too long.
    #[error("a word of {0} bytes: at most {LONGEST} are allowed")]
    TooLong(usize),
    /// A word cannot be passed to a program.
    #[error("{0:?} has a zero byte, or is not a variable name")]
    Malformed(String),
}

impl ProgramRequest {
    /// Makes a request with these words and nothing else.
    pub fn new(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            words: words.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Checks that the kernel can accept it.
    ///
    /// # Errors
    /// The reason why it cannot.
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
