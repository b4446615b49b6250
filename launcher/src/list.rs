//! `peerbar list`: the kinds of checks that a scenario can have.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use peerbar_lab::exit::Failure;
use peerbar_report::{KINDS, Kind};

use crate::cli::List;

/// Prints the kind that is asked for with its keys, or all of them with what they check.
pub(crate) fn list(options: &List) -> Result<ExitCode, Failure> {
    let text: String = match &options.kind {
        Some(name) => KINDS
            .iter()
            .filter(|kind| kind.name == name)
            .map(Kind::plain)
            .collect(),
        None => KINDS
            .iter()
            .map(|kind| format!("{:<20} {}\n", kind.name, kind.about))
            .collect(),
    };
    let printed = std::io::stdout().write_all(text.as_bytes());
    printed.context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}
