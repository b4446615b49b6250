//! What a run has left in its folder.

use std::path::Path;

use anyhow::{Context, anyhow};
use peerbar_report::Evidence;
use serde::de::DeserializeOwned;

use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::{EVIDENCE, SCENARIO};
use peerbar_lab::guests_of;
use peerbar_lab::results::{CheckResult, RESULTS, RunResults};
use peerbar_lab::run_file;
use peerbar_lab::scenario::{GuestGroup, Scenario};
use peerbar_lab::started::{STARTED, Started};
use peerbar_lab::verdict::Verdict;

/// A run that is over.
pub(crate) struct Recorded {
    /// How it ended, and why.
    pub verdict: Verdict,
    /// What was run.
    pub scenario: Scenario,
    /// `uname -r` of its kernel.
    pub release: String,
    /// What its guest knew of peer-to-peer DMA.
    pub evidence: Vec<Evidence>,
    /// The results of its checks, in order.
    pub results: Vec<CheckResult>,
    /// Those of the checks across guests, if it is one of several and their run is over.
    pub across: Vec<CheckResult>,
}

impl Recorded {
    /// Reads the run in `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        if !folder.is_dir() {
            return Err(Failure::Usage(anyhow!(
                "{}: no run is there: run a scenario, name another folder with --run, or a scenario with --scenario",
                folder.display()
            )));
        }
        let started: Started = json(folder, STARTED)?;
        let Some(path) = started.scenario else {
            let folder = folder.display();
            return Err(Failure::Usage(anyhow!(
                "{folder} is of a matrix, which has a run for each boot: name one, as {folder}/BOOT/latest"
            )));
        };
        let text = text(folder, SCENARIO)?;
        let results: RunResults = json(folder, RESULTS)?;
        let mut scenario = Scenario::parse_interactive(&path, text)?;
        let names: Vec<String> = results.checks.iter().map(|row| row.name.clone()).collect();
        // A lab has run checks that its scenario does not have, so there is nothing to select.
        let _ = scenario.select_checks(&names);
        Ok(Self {
            verdict: results.verdict,
            scenario,
            release: started.versions.kernel,
            evidence: json(folder, EVIDENCE)?,
            results: results.checks,
            across: across(folder)?,
        })
    }
}

/// The results of the checks across guests of the run that the guest in `folder` is of, if it is of one that has results.
fn across(folder: &Path) -> Result<Vec<CheckResult>, Failure> {
    let (Some(group), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(Vec::new());
    };
    let guests = guests_of(group).map_err(Failure::Usage)?;
    if !guests.iter().any(|guest| **guest == *name) || !group.join(RESULTS).exists() {
        return Ok(Vec::new());
    }
    let path = Path::new(SCENARIO);
    let scenario = GuestGroup::parse_interactive(path, text(group, SCENARIO)?)?;
    let checks = scenario.map(|group| group.checks).unwrap_or_default();
    let results: RunResults = json(group, RESULTS)?;
    let mut results = results.checks;
    results.retain(|result| checks.iter().any(|check| check.name == result.name));
    Ok(results)
}

fn text(folder: &Path, name: &str) -> Result<String, Failure> {
    let path = folder.join(name);
    let text = run_file::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}: only a run that is over, by a peerbar of this version, can be explained",
            path.display()
        )
    });
    text.map_err(Failure::Usage)
}

fn json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T, Failure> {
    let value = serde_json::from_str(&text(folder, name)?).with_context(|| {
        format!(
            "{} is not of this version of peerbar",
            folder.join(name).display()
        )
    });
    value.map_err(Failure::Usage)
}
