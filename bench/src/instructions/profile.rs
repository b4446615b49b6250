//! What callgrind leaves (valgrind manual, "Callgrind Format Specification"): which function took how many instructions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Error;
use crate::figure::readable;

/// Instructions by function, without those of the functions that it calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Profile(BTreeMap<String, f64>);

impl Profile {
    /// Reads a profile.
    pub(super) fn load(path: &Path) -> Result<Self, Error> {
        let text =
            fs::read_to_string(path).map_err(Error::system(format!("read {}", path.display())))?;
        let profile = Self::parse(&text);
        if profile.0.is_empty() {
            return Err(Error::Profile {
                path: path.to_owned(),
            });
        }
        Ok(profile)
    }

    fn parse(text: &str) -> Self {
        let mut names = BTreeMap::new();
        let mut profile = Self::default();
        let mut function = String::new();
        let mut called = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = full(name, &mut names);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                full(name, &mut names);
            } else if line.starts_with("calls=") {
                called = true;
            } else if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            {
                // The line after a call is what the other function took.
                if !std::mem::take(&mut called) {
                    *profile.0.entry(function.clone()).or_default() += cost(line);
                }
            }
        }
        profile
    }

    /// What was taken beyond `less`, for each of `count`.
    pub(super) fn beyond(&self, less: &Self, count: u64) -> Self {
        let count = Duration::from_secs(count).as_secs_f64();
        let each = self.0.iter().map(|(function, more)| {
            let less = less.0.get(function).copied().unwrap_or(0.0);
            (function.clone(), (more - less) / count)
        });
        Self(each.collect())
    }

    /// All instructions.
    pub(super) fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Those of the functions that `which` picks.
    pub(super) fn of(&self, which: fn(&str) -> bool) -> f64 {
        let picked = self.0.iter().filter(|(function, _)| which(function));
        picked.map(|(_, instructions)| instructions).sum()
    }

    /// The functions that took most, and how much.
    pub(super) fn top(&self, count: usize) -> String {
        let mut functions: Vec<_> = self.0.iter().collect();
        functions.sort_by(|a, b| b.1.total_cmp(a.1));
        let told = functions.into_iter().take(count);
        let told =
            told.map(|(function, instructions)| format!("{} {function}", readable(*instructions)));
        told.collect::<Vec<_>>().join("; ")
    }
}

/// `(12) name`, which gives a name its number, or `(12)`.
fn full(text: &str, names: &mut BTreeMap<String, String>) -> String {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    if !name.is_empty() {
        names.insert(number.to_owned(), name.to_owned());
    }
    names
        .get(number)
        .cloned()
        .unwrap_or_else(|| text.to_owned())
}

/// The number after the line's.
fn cost(line: &str) -> f64 {
    let second = line.split_whitespace().nth(1);
    second.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "version: 1\nevents: Ir\n\nfl=(1) a.rs\nfn=(1) main\n16 40\ncfn=(2) copy\ncalls=2 50\n\
        16 400\n+1 10\n\nfn=(2)\n50 400\n";

    #[test]
    fn what_was_called_is_not_counted_twice() {
        let profile = Profile::parse(PROFILE);
        let expected = [("main", 50.0), ("copy", 400.0)];
        let expected = expected.map(|(name, cost)| (name.to_owned(), cost));
        assert_eq!(profile, Profile(BTreeMap::from(expected)));
        assert_eq!(profile.total(), 450.0);
        assert_eq!(profile.of(|name| name == "copy"), 400.0);
        assert_eq!(profile.top(1), "400 copy");
    }

    #[test]
    fn start_and_end_are_in_no_share() {
        let some = Profile(BTreeMap::from([
            ("a".to_owned(), 100.0),
            ("b".to_owned(), 7.0),
        ]));
        let more = Profile(BTreeMap::from([
            ("a".to_owned(), 150.0),
            ("b".to_owned(), 7.0),
        ]));
        assert_eq!(more.beyond(&some, 10).total(), 5.0);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Profile::load(file.path()).is_err());
    }
}
