//! The expectations of a command or a program.

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Buffer, Key, Keys, TableError};

/// The conditions under which a command or a program passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Exit status that passes.
    pub status: i32,
    /// `true` if a lab's caller requested it, who judges its output and its exit status
    /// ([`crate::Measure::status`]): any status passes, and it has no `timeout`. No scenario can
    /// request that.
    pub judged_by_caller: bool,
    /// Texts that must all appear in its output.
    pub expect: Vec<String>,
    /// Regular expressions that must all match in its output; `^` and `$` are the ends of a line.
    pub matches: Vec<String>,
    /// Texts that must all appear in the kernel's log during the check. A complaint with one of
    /// them does not fail the check.
    pub kernel: Vec<String>,
    /// Memory that must hold all data that it moves, according to the devices' counters.
    pub through: Option<Buffer>,
    /// Show its output during the run, and report it even if the check passes.
    pub show: bool,
}

impl Expectation {
    /// Returns the placeholder of the memory that the data must lie in, if it is a device's.
    pub(super) fn memory(&self) -> Option<String> {
        match &self.through {
            Some(Buffer::P2pmem(provider)) => Some(format!("{{{provider}:p2pmem}}")),
            Some(Buffer::GuestRam) | None => None,
        }
    }

    pub(super) const KEYS: &[Key] = &[
        Key::required("status", "Exit status that passes.").or("0"),
        Key::required("expect", "Texts that must all appear in its output.").or("none"),
        Key::required(
            "matches",
            "Regular expressions that must all match in its output; `^` and `$` are the ends of a line.",
        )
        .or("none"),
        Key::required(
            "kernel",
            "Texts that must all appear in the kernel's log during the check. A complaint with one of them does not fail the check.",
        )
        .or("none"),
        Key::required(
            "through",
            "Memory that must hold all data that it moves: `\"guest-ram\"` or `{ p2pmem = \"NAME\" }`. The counters of the devices decide. If \
             they cannot distinguish two providers, the files that the command has opened to allocate memory decide, and those that processes held before.",
        )
        .or("anywhere"),
        Key::required(
            "show",
            "Show its output in `peerbar run`, and keep it in the results even if the check passes.",
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

/// Compiles a regular expression that must match in a text of many lines.
///
/// # Errors
/// The reason why it is invalid.
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
                "`matches`: invalid regular expression {:?}: {error}",
                pattern.get_ref()
            );
            return Err(TableError::new(pattern.span(), message));
        }
    }
    Ok(patterns.into_iter().map(Spanned::into_inner).collect())
}
