//! The files that a run has left in its folder.

use std::path::Path;

use anyhow::{Context, anyhow};
use peerbar_report::Evidence;
use serde::de::DeserializeOwned;

use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::{EVIDENCE, SCENARIO, VERDICT, not_run};
use peerbar_lab::group_of;
use peerbar_lab::results::{CheckResult, RESULTS, RunResults};
use peerbar_lab::run_file;
use peerbar_lab::scenario::{GuestGroup, Scenario};
use peerbar_lab::started::{STARTED, Started};
use peerbar_lab::verdict::RunVerdict;

/// A run that has ended.
pub(crate) struct Recorded {
    /// The verdict, with the reason: that of the whole run if this is one guest of several.
    pub verdict: RunVerdict,
    /// Its scenario.
    pub scenario: Scenario,
    /// `uname -r` of its kernel.
    pub release: String,
    /// The guest's evidence about peer-to-peer DMA.
    pub evidence: Vec<Evidence>,
    /// The results of its checks, in order.
    pub results: Vec<CheckResult>,
    /// Those of the checks across guests, if it is one of several.
    pub across: Vec<CheckResult>,
}

impl Recorded {
    /// Reads the run in `folder`.
    ///
    /// # Errors
    /// The folder has no run, the run has not begun or not ended, or another version of peerbar made
    /// it.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        check_was_run(folder)?;
        let run = Self::read_before_verdict(folder)?;
        text(folder, VERDICT)?;
        if let Some(group) = group_of(folder).map_err(Failure::Usage)? {
            text(&group, VERDICT)?;
        }
        Ok(run)
    }

    /// Reads the run in `folder`, which may lack the file `verdict`.
    ///
    /// # Errors
    /// The folder has no run, or another version of peerbar made it.
    pub(crate) fn read_before_verdict(folder: &Path) -> Result<Self, Failure> {
        if !folder.is_dir() {
            return Err(Failure::Usage(anyhow!(
                "{}: no run found: run a scenario, name another folder with --run, or a scenario with --scenario",
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
        let group = GroupResults::of_guest(folder, &path)?;
        let (across, verdict) = match group {
            Some(group) => (group.across, group.verdict),
            None => (Vec::new(), results.verdict),
        };
        Ok(Self {
            verdict,
            scenario,
            release: started.versions.kernel,
            evidence: json(folder, EVIDENCE)?,
            results: results.checks,
            across,
        })
    }
}

/// Checks that the run in `folder` was run to its end.
///
/// # Errors
/// It was not, for the reason that the message gives.
pub(crate) fn check_was_run(folder: &Path) -> Result<(), Failure> {
    let Some(verdict) = not_run(folder) else {
        return Ok(());
    };
    let folder = folder.display();
    Err(Failure::Usage(anyhow!(
        "{folder} has no results: {verdict}"
    )))
}

/// The results of a run of several guests.
struct GroupResults {
    verdict: RunVerdict,
    /// Those of the checks across guests.
    across: Vec<CheckResult>,
}

impl GroupResults {
    /// Reads the results of the run to which the guest in `folder` belongs, if that run has several
    /// guests and results. `scenario` is the file of the run, whose folder has its images and
    /// modules.
    fn of_guest(folder: &Path, scenario: &Path) -> Result<Option<Self>, Failure> {
        let group = group_of(folder).map_err(Failure::Usage)?;
        let Some(group) = group.filter(|group| group.join(RESULTS).exists()) else {
            return Ok(None);
        };
        let scenario = GuestGroup::parse_interactive(scenario, text(&group, SCENARIO)?)?;
        let checks = scenario.map(|group| group.checks).unwrap_or_default();
        let results: RunResults = json(&group, RESULTS)?;
        let mut across = results.checks;
        across.retain(|result| checks.iter().any(|check| check.name == result.name));
        Ok(Some(Self {
            verdict: results.verdict,
            across,
        }))
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use peerbar_lab::exit::RunOutcome;

    use super::*;

    const GROUP: &str = r#"
name = "x"
tools = true
guest = [{ name = "left" }, { name = "right" }]
nic = [{ name = "n0", guest = "left" }, { name = "n1", guest = "right" }]

[[nvme]]
name = "disk0"
guest = "left"
namespaces = [{ file = "data.img" }]

[[check]]
name = "over the wire"
kind = "rdma"
nic = "n0"
peer = "n1"
from = "guest-ram"
to = "guest-ram"
sizes = ["4K"]
"#;

    #[test]
    fn results_of_the_group_are_found_beside_its_images() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("data.img"), [0; 1 << 20]).unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("guests.json"), r#"["left", "right"]"#).unwrap();
        fs::write(run.join(SCENARIO), GROUP).unwrap();
        let named = |name: &str| CheckResult {
            name: name.to_owned(),
            ..CheckResult::default()
        };
        let verdict = RunVerdict {
            outcome: RunOutcome::Failed,
            reason: "server fabric ended".to_owned(),
        };
        let results = RunResults {
            format: 1,
            scenario: "x".to_owned(),
            verdict: verdict.clone(),
            exit_code: 1,
            started: std::time::UNIX_EPOCH.into(),
            seconds: 1.0,
            series: None,
            versions: Default::default(),
            checks: vec![named("left: its own"), named("over the wire")],
            not_run: Vec::new(),
        };
        let results = serde_json::to_vec(&results).unwrap();
        fs::write(run.join(RESULTS), results).unwrap();
        let scenario = folder.path().join("x.toml");
        let found = GroupResults::of_guest(&run.join("left"), &scenario).unwrap();
        assert!(found.is_none());
        fs::create_dir(run.join("left")).unwrap();
        let found = GroupResults::of_guest(&run.join("left"), &scenario).unwrap();
        let found = found.unwrap();
        assert_eq!(found.across, [named("over the wire")]);
        assert_eq!(found.verdict, verdict);
        assert!(GroupResults::of_guest(&run, &scenario).unwrap().is_none());
    }
}
