//! A run that has ended: judged, and stored in its folder.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use peerbar_report::{KtapError, Line, Measure, Verdict};

use crate::child::last_line;
use crate::console::Console;
use crate::folder::{Folder, QEMU_LOG};
use crate::guest::Guest;
use crate::report::{CheckTime, REPORT, Report, Row};
use crate::results::{RESULTS, RunResults};
use crate::run_file;
use crate::scenario::Scenario;
use crate::started::Started;
use crate::verdict::{Ending, Evidence, RunVerdict, cut_off, judge};

/// File in a run's folder: the text of its scenario.
pub const SCENARIO: &str = "scenario.toml";
/// File in a run's folder: the guest's evidence about peer-to-peer DMA, an array of
/// [`peerbar_report::Evidence`].
pub const EVIDENCE: &str = "evidence.json";
/// File in a run's folder: the times of its checks, an array of [`crate::report::CheckTime`].
pub const TIMES: &str = "times.json";
/// The last file in a run's folder: its verdict in one line.
pub const VERDICT: &str = "verdict";
/// First characters of the verdict of a run that has no results.
const NOT_RUN: &str = "not run: ";

/// A run that has ended and is not yet judged.
pub struct FinishedRun {
    /// The reason why it is no longer watched.
    pub ending: Ending,
    /// The guest's console.
    pub console: Console,
    /// The agent's report.
    pub report: Report,
    /// Complaint about a server that failed, or from the sanitizer.
    pub complaint: Option<String>,
    /// From QEMU's start to its end.
    pub seconds: f64,
}

/// A run that has been judged.
pub struct Concluded {
    /// The verdict, with the reason.
    pub verdict: RunVerdict,
    /// The results, by the names that the scenario gives them.
    pub rows: Vec<Row>,
    /// The last diagnostics, which belong to no result.
    pub rest: Vec<String>,
    /// The error in the report, if there is one.
    pub report: Result<(), KtapError>,
    /// The guest's console.
    pub console: Console,
    /// The reason why it is no longer watched.
    pub ending: Ending,
    /// From QEMU's start to its end.
    pub seconds: f64,
    /// The results for programs.
    pub results: RunResults,
}

impl FinishedRun {
    /// Ends `guest` and its servers after `ending`.
    ///
    /// # Errors
    /// A process that cannot be ended.
    pub fn stop(guest: Guest<'_>, ending: Ending) -> anyhow::Result<Self> {
        let seconds = guest.started().elapsed().as_secs_f64();
        let (console, report, complaint) = guest.stop()?;
        Ok(Self {
            ending: ending.caused_by(complaint.as_deref()),
            console,
            report,
            complaint,
            seconds,
        })
    }

    /// Returns the times of the checks, by the names that the scenario gives them.
    fn times(&self, scenario: &Scenario) -> Vec<CheckTime> {
        let mut times = self.report.times().to_vec();
        for (number, time) in (1..).zip(&mut times) {
            time.name = scenario.label(number).unwrap_or(&time.name).to_owned();
        }
        times
    }

    /// Judges the run, and stores its results in its folder. [`Concluded::seal`] must follow.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn conclude(self, scenario: &Scenario, folder: &Folder) -> anyhow::Result<Concluded> {
        folder.write_json(EVIDENCE, &self.report.evidence())?;
        folder.write_json(TIMES, &self.times(scenario))?;
        let was_ready = self.report.is_ready();
        let (mut rows, rest, report) = self.report.finish();
        for (number, row) in (1..).zip(&mut rows) {
            row.name = scenario.label(number).unwrap_or(&row.name).to_owned();
        }
        let evidence = Evidence {
            ending: &self.ending,
            asked: (!scenario.interactive).then_some(scenario.checks.len()),
            rows: &[],
            report: &report,
            trouble: self.console.trouble(),
            complaint: self.complaint.as_deref(),
            qemu: &last_line(&folder.path().join(QEMU_LOG)),
        };
        let reason = cut_off(&evidence).filter(|_| was_ready);
        if let Some(row) = reason.and_then(|reason| at_work(&reason, scenario, rows.len())) {
            rows.push(row.clone());
            add_to_report(row, rows.len(), folder)?;
        }
        let verdict = judge(&Evidence {
            rows: &rows,
            ..evidence
        });
        let started = Started::read(folder.path())?;
        let results = RunResults::of(scenario, &verdict, &rows, self.seconds, started);
        folder.write_json(RESULTS, &results)?;
        Ok(Concluded {
            verdict,
            rows,
            rest,
            report,
            console: self.console,
            ending: self.ending,
            seconds: self.seconds,
            results,
        })
    }
}

/// Returns the result of the check after `done` others, during which the guest ended for this
/// `reason`, or `None` if all were done.
fn at_work(reason: &str, scenario: &Scenario, done: usize) -> Option<Row> {
    Some(Row {
        name: scenario.check_names().into_iter().nth(done)?,
        verdict: Verdict::Fail,
        measure: Measure::default(),
        diagnostics: vec![format!("{reason}, while this check was at work")],
        subtests: Vec::new(),
    })
}

/// Adds the result with this number to the report of a guest that can no longer do so.
fn add_to_report(row: Row, number: usize, folder: &Folder) -> anyhow::Result<()> {
    let result = Line::Result {
        number: u32::try_from(number).unwrap_or(u32::MAX),
        name: row.name,
        verdict: row.verdict,
    };
    let diagnostics = row.diagnostics.into_iter().map(Line::Diagnostic);
    // The guest may have ended within a line.
    let mut text = String::from("\n");
    for line in diagnostics.chain([result]) {
        text += &format!("{line}\n");
    }
    let mut report = folder.append(REPORT)?;
    report
        .write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", folder.path().join(REPORT).display()))
}

impl Concluded {
    /// Writes the verdict: the last file of the run's folder, so that its presence shows that all
    /// others are complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn seal(&self, folder: &Folder) -> anyhow::Result<()> {
        folder.write(VERDICT, &format!("{}\n", self.verdict))
    }
}

/// Writes the verdict of a run that was not run to its end, with the reason `why`. The caller
/// reports that reason, so an error of the file is a warning and does not take its place.
pub fn leave_not_run(folder: &Folder, why: impl Display) {
    if let Err(error) = folder.write(VERDICT, &format!("{NOT_RUN}{why}\n")) {
        log::warn!("the run is left without a verdict: {error:#}");
    }
}

/// Returns the verdict of the run in `folder` if it was not run to its end, and so has no results.
pub fn not_run(folder: &Path) -> Option<String> {
    let verdict = run_file::read_to_string(&folder.join(VERDICT)).ok()?;
    let is_meant = verdict.starts_with(NOT_RUN) && !folder.join(RESULTS).exists();
    is_meant.then(|| verdict.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use peerbar_report::KnownWarnings;

    use super::*;
    use crate::started::Versions;

    #[test]
    fn check_that_was_at_work_when_the_guest_ended_has_failed() {
        let demo = Scenario::demo().unwrap();
        let row = |done| at_work("QEMU ended", &demo, done).map(|row| row.name);
        let first = "disk0 publishes its CMB as p2pmem".to_owned();
        assert_eq!(row(0), Some(first));
        assert_eq!(row(demo.checks.len()), None);
    }

    #[test]
    fn run_that_did_not_run_leaves_the_reason_if_it_can() {
        let runs = tempfile::tempdir().unwrap();
        let folder = Folder::named(runs.path(), "x").unwrap();
        leave_not_run(&folder, "no memory");
        let verdict = folder.path().join(VERDICT);
        let text = std::fs::read_to_string(&verdict).unwrap();
        assert_eq!(text, "not run: no memory\n");
        std::fs::remove_file(&verdict).unwrap();
        std::fs::create_dir(&verdict).unwrap();
        leave_not_run(&folder, "no memory");
        assert!(verdict.is_dir());
    }

    #[test]
    fn death_during_a_check_has_one_reason_and_one_count() {
        let runs = tempfile::tempdir().unwrap();
        let folder = Folder::named(runs.path(), "x").unwrap();
        folder.begin(None, Versions::default()).unwrap();
        folder.write(QEMU_LOG, "qemu: no memory\n").unwrap();
        let text = "KTAP version 1\n1..19\n# ready 5\nok 1 - a\n";
        let mut report = Report::new(folder.file(REPORT).unwrap(), false);
        report.take(text.as_bytes()).unwrap();
        let run = FinishedRun {
            ending: Ending::Ended(ExitStatus::from_raw(9)),
            console: Console::new(
                folder.file("console.log").unwrap(),
                KnownWarnings::default(),
            ),
            report,
            complaint: None,
            seconds: 1.0,
        };
        let concluded = run.conclude(&Scenario::demo().unwrap(), &folder).unwrap();
        let reason = "QEMU ended (signal: 9 (SIGKILL)): qemu: no memory";
        let name = &concluded.rows[1].name;
        assert_eq!(
            concluded.verdict.to_string(),
            format!(
                "guest died: the report ends after 1 of 19 results; {reason}; 1 of 19 checks did not pass: {name}"
            )
        );
        let checks = &concluded.results.checks;
        let why = [format!("{reason}, while this check was at work")];
        assert_eq!((checks.len(), checks[1].passed()), (2, false));
        assert_eq!(checks[1].diagnostics, why);
        let report = std::fs::read_to_string(folder.path().join(REPORT)).unwrap();
        let added = format!("\n# {}\nnot ok 2 - {name}\n", why[0]);
        assert!(report.ends_with(&added), "{report}");
    }
}
