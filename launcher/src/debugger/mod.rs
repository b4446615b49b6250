//! `peerbar iommu`: what the devices of a run saw of mappings, and why a DMA failed, from their flight records.

mod behind;
mod data;
mod follow;
mod kernel;
mod line;
mod recorded;
mod text;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use peerbar_flight::{Finding, FindingKind};

use recorded::Recorded;

use crate::cli;
use crate::exit::Failure;
use crate::results::print;
use crate::scenario::Sanitize;

/// Exit code if the sanitizer has found something.
const FINDINGS: u8 = 1;

/// Shows what is asked for.
pub(crate) fn iommu(options: &cli::Debugger) -> Result<ExitCode, Failure> {
    let mut recorded = Recorded::open(&options.run).map_err(Failure::Usage)?;
    recorded
        .show_only(options.device.as_deref())
        .map_err(Failure::Usage)?;
    if options.follow {
        follow::follow(&recorded)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if options.json {
        let all = data::all(&recorded, options.sanitize);
        serde_json::to_string_pretty(&all).context("cannot write JSON")? + "\n"
    } else if options.history {
        line::history(&recorded)
    } else {
        text::all(&recorded, options)
    };
    print(&shown)?;
    let found = options.sanitize && !recorded.findings().is_empty();
    Ok(ExitCode::from(if found { FINDINGS } else { 0 }))
}

/// What the sanitizer has against a run that is over, if anything, in one line.
pub(crate) fn complaint(folder: &Path, wanted: &Sanitize) -> anyhow::Result<Option<String>> {
    let recorded = Recorded::open(folder)?;
    if let Some(device) = recorded.shown().find(|device| device.lost() > 0) {
        let (lost, name) = (device.lost(), &device.name);
        return Ok(Some(format!(
            "the sanitizer has missed {lost} records of {name}: let the scenario do less"
        )));
    }
    let findings = recorded.findings();
    let unexpected = |(_, finding): &&(_, Finding)| !wanted.expected.contains(&finding.kind);
    if let Some((device, first)) = findings.iter().find(unexpected) {
        let first = text::finding(&recorded, device, first);
        return Ok(Some(format!(
            "the sanitizer has found {}: {first}",
            findings.len()
        )));
    }
    let found = |kind: &FindingKind| findings.iter().any(|(_, finding)| finding.kind == *kind);
    let missing = wanted.expected.iter().find(|kind| !found(kind));
    Ok(
        missing
            .map(|kind| format!("the sanitizer has found no {kind}, which the scenario expects")),
    )
}
