//! A test, and the requirement that it checks.

use std::fmt;

use crate::checker::Checker;
use crate::outcome::Outcome;

/// A test of a server.
#[derive(Clone, Copy)]
pub struct Test {
    /// The group to which it belongs.
    pub group: &'static str,
    /// Its name within the group.
    pub name: &'static str,
    /// The requirement that it checks.
    pub source: Source,
    pub(crate) run: fn(&mut Checker) -> Outcome,
}

/// The requirement that a test checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The specification's, in a paraphrase.
    Specification {
        /// Its section.
        section: &'static str,
        /// The requirement.
        says: &'static str,
    },
    /// One of QEMU's client (10.1.1 and later), which the specification does not have.
    Qemu(&'static str),
}

/// A test's run function.
pub(crate) type Run = fn(&mut Checker) -> Outcome;

/// The tests of a group, in the order in which they run.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) tests: &'static [(&'static str, Source, Run)],
}

impl Group {
    pub(crate) fn tests(&self) -> impl Iterator<Item = Test> {
        let group = self.name;
        let tests = self.tests.iter();
        tests.map(move |(name, source, run)| Test {
            group,
            name,
            source: *source,
            run: *run,
        })
    }
}

/// Returns a requirement of a section of the specification.
pub(crate) const fn specified(section: &'static str, says: &'static str) -> Source {
    Source::Specification { section, says }
}

impl Test {
    /// Returns `true` if a user means this test, or its group, by a word.
    pub fn is_named(&self, word: &str) -> bool {
        match word.split_once('.') {
            Some((group, name)) => (self.group, self.name) == (group, name),
            None => self.group == word,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group, self.name)
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Specification { section, says } => write!(f, "vfio-user, {section}: {says}"),
            Self::Qemu(says) => write!(f, "QEMU's client: {says}"),
        }
    }
}
