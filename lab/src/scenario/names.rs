//! Names in a scenario file.

use std::collections::BTreeSet;
use std::ops::Range;

use peerbar_report::{steers, way_out};
use toml::Spanned;

use super::error::Problem;

/// A serial number has 20 characters (NVMe Base 2.0, 5.17.2.1).
pub(super) const LONGEST_SERIAL: usize = 20;
pub(super) const LONGEST_SCENARIO: usize = 40;
/// Names of the servers that belong neither to a device nor to a switch: a server is identified by
/// its name.
const SERVERS: [&str; 2] = ["fabric", "vsock"];

/// Checks the names of devices, bridges, switches and guests: each must be unique and not that of a
/// server of peerbar's own.
pub(super) fn unique(
    names: impl Iterator<Item = Spanned<String>>,
    taken: &[String],
    longest: usize,
) -> Result<Vec<String>, Problem> {
    let names: Vec<_> = names.collect();
    let is_server = |name: &&Spanned<String>| SERVERS.contains(&name.get_ref().as_str());
    if let Some(name) = names.iter().find(is_server) {
        let message = format!(
            "the name `{}` belongs to a server of peerbar's own: choose another",
            name.get_ref()
        );
        return Err(Problem::new(name.span(), message));
    }
    distinct(names, taken, longest)
}

/// Checks that all names are different.
pub(super) fn distinct(
    names: impl IntoIterator<Item = Spanned<String>>,
    taken: &[String],
    longest: usize,
) -> Result<Vec<String>, Problem> {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        if seen.contains(name.get_ref()) || taken.contains(name.get_ref()) {
            let message = format!(
                "the name `{}` is taken: every bridge, switch, device and module needs its own",
                name.get_ref()
            );
            return Err(Problem::new(name.span(), message));
        }
        seen.push(fitting(name, longest)?);
    }
    Ok(seen)
}

/// Names become file names, QEMU identifiers and serial numbers.
pub(super) fn fitting(name: Spanned<String>, longest: usize) -> Result<String, Problem> {
    let at: Range<usize> = name.span();
    let name = name.into_inner();
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let fits = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if !starts || !fits || name.len() > longest {
        let message = format!(
            "invalid name `{name}`: expected a letter first, then letters, digits, `-` and `_`, {longest} at most"
        );
        return Err(Problem::new(at, message));
    }
    Ok(name)
}

/// Checks the name that a scenario gives to a check: the table of results shows it, on a terminal
/// too.
pub(super) fn label(name: &Spanned<String>) -> Result<(), Problem> {
    let text = name.get_ref();
    let message = if text.trim().is_empty() {
        format!("the name {text:?} is blank: write one that identifies the check")
    } else if let Some(steering) = text.chars().find(|&character| steers(character)) {
        let character = u32::from(steering);
        format!("the name {text:?} has the control character U+{character:04X}: leave it out")
    } else {
        return Ok(());
    };
    Err(Problem::new(name.span(), message))
}

/// Rejects a label that another check has too. `names` are those of checks without a label: two of
/// these may be equal, because the user has not chosen them.
pub(super) fn distinct_labels<'a>(
    labels: impl IntoIterator<Item = &'a Spanned<String>>,
    names: &[String],
) -> Result<(), Problem> {
    let mut seen: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    for label in labels {
        let name = label.get_ref().as_str();
        if !seen.insert(name) {
            let message = format!("another check has the name `{name}`: give each its own");
            return Err(Problem::new(label.span(), message));
        }
    }
    Ok(())
}

/// Rejects `names` of checks that are not among the `known` ones.
pub(super) fn demand_known_checks(names: &[String], known: &[String]) -> anyhow::Result<()> {
    for name in names {
        anyhow::ensure!(
            known.contains(name),
            "no check is named `{name}`: {}",
            way_out(name, known.iter().map(String::as_str))
        );
    }
    Ok(())
}
