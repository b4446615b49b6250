//! Outcomes of tests.

use std::fmt;

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server does what it must.
    Pass,
    /// It does not. Each line says something about it.
    Fail(Vec<String>),
    /// The test does not apply to this server, for this reason.
    Skip(String),
}

/// The reason why a test has not passed.
#[derive(Debug)]
pub(crate) enum Failing {
    /// The server has violated a requirement.
    Violation(Violation),
    /// The test does not apply to this server.
    NotApplicable(String),
}

/// The exchange that was not as it must be.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) sent: String,
    pub(crate) received: String,
    pub(crate) expected: String,
}

/// The result of a test, or of a part of it.
pub(crate) type Outcome<T = ()> = Result<T, Failing>;

impl Failing {
    pub(crate) fn not_applicable(reason: impl Into<String>) -> Self {
        Self::NotApplicable(reason.into())
    }

    /// Adds what was sent before.
    pub(crate) fn after(mut self, before: &str) -> Self {
        if let Self::Violation(violation) = &mut self {
            violation.sent = format!("{before}; then {}", violation.sent);
        }
        self
    }
}

impl Violation {
    pub(crate) fn lines(self) -> Vec<String> {
        vec![
            format!("sent: {}", self.sent),
            format!("received: {}", self.received),
            format!("expected: {}", self.expected),
        ]
    }
}

/// A list of bytes, as text.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
