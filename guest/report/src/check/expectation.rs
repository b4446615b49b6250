//! What is expected of a command or a program.

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Buffer, Key, Keys, TableError};

/// What a command or a program must do to pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Exit status that passes.
    pub status: i32,
    /// Whether a lab's caller asked for it, who judges what it prints and its exit status ([`crate::Measure::status`]): any passes, and it
    /// has no `timeout`. No scenario can ask for that.
    pub judged_by_caller: bool,
    /// Texts that must all appear in what it prints.
    pub expect: Vec<String>,
    /// Regular expressions that must all match in what it prints; `^` and `$` are the ends of a line.
    pub matches: Vec<String>,
    /// Texts that must all appear in the kernel's log meanwhile. A complaint with one of them is no failure of the check.
    pub kernel: Vec<String>,
    /// Where the data that it moves must lie, all of it, as the devices' counters show.
    pub through: Option<Buffer>,
    /// Whether a run shows what it prints, which is reported also if it passes.
    pub show: bool,
}

impl Expectation {
    /// The placeholder of the memory that the data must lie in, if it is a device's.
    pub(super) fn memory(&self) -> Option<String> {
        match &self.through {
            Some(Buffer::P2pmem(provider)) => Some(format!("{{{provider}:p2pmem}}")),
            Some(Buffer::GuestRam) | None => None,
        }
    }

    pub(super) const KEYS: &[Key] = &[
        Key::required("status", "Exit status that passes.").or("0"),
        Key::required("expect", "Texts that must all appear in what it prints.").or("none"),
        Key::required(
            "matches",
            "Regular expressions that must all match in what it prints; `^` and `$` are the ends of a line.",
        )
        .or("none"),
        Key::required(
            "kernel",
            "Texts that must all appear in the kernel's log meanwhile. A complaint with one of them does not fail the check.",
        )
        .or("none"),
        Key::required(
            "through",
            "Where all of the data that it moves must lie: `\"guest-ram\"` or `{ p2pmem = \"NAME\" }`. The counters of the devices tell, and, where \
             they cannot tell two providers apart, what the command has opened to allocate memory and what processes held before.",
        )
        .or("anywhere"),
        Key::required(
            "show",
            "Whether `peerbar run` shows what it prints, and its results have that also if it passes.",
        )
        .or("false"),
    ];

    /// Takes the keys above out of a table.
    pub(super) fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let through = keys.optional("through")?;
        let through = through
            .map(|through| keys.inventory.buffer(through))
            .transpose()?;
        Ok(Self {
            status: status(keys)?,
            judged_by_caller: false,
            expect: keys.or_default("expect")?,
            matches: matches(keys)?,
            kernel: keys.or_default("kernel")?,
            through: through.map(Spanned::into_inner),
            show: keys.or_default("show")?,
        })
    }
}

/// A regular expression that must match in a text of many lines.
///
/// # Errors
/// Why it is none.
pub fn line_pattern(text: &str) -> Result<Regex, regex_lite::Error> {
    Regex::new(&format!("(?m){text}"))
}

fn status(keys: &mut Keys<'_, '_>) -> Result<i32, TableError> {
    let status: Option<Spanned<i32>> = keys.optional("status")?;
    match status {
        Some(status) if u8::try_from(*status.get_ref()).is_err() => {
            let message = format!("`status = {}`: from 0 to 255", status.get_ref());
            Err(TableError::new(status.span(), message))
        }
        status => Ok(status.map_or(0, Spanned::into_inner)),
    }
}

fn matches(keys: &mut Keys<'_, '_>) -> Result<Vec<String>, TableError> {
    let patterns: Vec<Spanned<String>> = keys.or_default("matches")?;
    for pattern in &patterns {
        if let Err(error) = line_pattern(pattern.get_ref()) {
            let message = format!(
                "`matches`: {:?} is no regular expression: {error}",
                pattern.get_ref()
            );
            return Err(TableError::new(pattern.span(), message));
        }
    }
    Ok(patterns.into_iter().map(Spanned::into_inner).collect())
}
