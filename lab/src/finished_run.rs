//! A run that has ended: judged, and stored in its folder.

use peerbar_report::{KtapError, Measure, Verdict};

use crate::child::last_line;
use crate::console::Console;
use crate::exit::RunOutcome;
use crate::folder::Folder;
use crate::guest::{Guest, QEMU_LOG};
use crate::report::{Report, Row};
use crate::results::{RESULTS, RunResults};
use crate::scenario::Scenario;
use crate::started::Started;
use crate::verdict::{Ending, Evidence, RunVerdict, judge};

/// File in a run's folder: the text of its scenario.
pub const SCENARIO: &str = "scenario.toml";
/// File in a run's folder: the guest's evidence about peer-to-peer DMA, an array of
/// [`peerbar_report::Evidence`].
pub const EVIDENCE: &str = "evidence.json";
/// File in a run's folder: the times of its checks, an array of [`crate::report::CheckTime`].
pub const TIMES: &str = "times.json";
/// The last file in a run's folder: its verdict in one line.
pub const VERDICT: &str = "verdict";

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

    /// Judges the run, and stores its results in its folder. [`Concluded::seal`] must follow.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn conclude(self, scenario: &Scenario, folder: &Folder) -> anyhow::Result<Concluded> {
        folder.write_json(EVIDENCE, &self.report.evidence())?;
        let mut times = self.report.times().to_vec();
        for (number, time) in (1..).zip(&mut times) {
            time.name = scenario.label(number).unwrap_or(&time.name).to_owned();
        }
        folder.write_json(TIMES, &times)?;
        let was_ready = self.report.is_ready();
        let (mut rows, rest, report) = self.report.finish();
        for (number, row) in (1..).zip(&mut rows) {
            row.name = scenario.label(number).unwrap_or(&row.name).to_owned();
        }
        let verdict = judge(&Evidence {
            ending: &self.ending,
            asked: (!scenario.interactive).then_some(scenario.checks.len()),
            rows: &rows,
            report: &report,
            trouble: self.console.trouble(),
            complaint: self.complaint.as_deref(),
            qemu: &last_line(&folder.path().join(QEMU_LOG)),
        });
        if was_ready && verdict.outcome != RunOutcome::Passed {
            rows.extend(at_work(&self.ending, scenario, rows.len()));
        }
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

/// Returns the result of the check after `done` others, if the guest ended, or ran out of time,
/// during that check.
fn at_work(ending: &Ending, scenario: &Scenario, done: usize) -> Option<Row> {
    let way = match ending {
        Ending::Ended(_) => "the guest ended",
        Ending::TimedOut(_) => "the guest's time was over",
        _ => return None,
    };
    Some(Row {
        name: scenario.check_names().into_iter().nth(done)?,
        verdict: Verdict::Fail,
        measure: Measure::default(),
        diagnostics: vec![format!("{way} while this check was at work")],
        subtests: Vec::new(),
    })
}

impl Concluded {
    /// Writes the verdict: the last file of the run's folder, so that its presence shows that all others are complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn seal(&self, folder: &Folder) -> anyhow::Result<()> {
        folder.write(VERDICT, &format!("{}\n", self.verdict))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn check_that_was_at_work_when_the_guest_ended_has_failed() {
        let demo = Scenario::demo().unwrap();
        let all = demo.checks.len();
        let row = |ending: &Ending, done| at_work(ending, &demo, done).map(|row| row.name);
        let ended = Ending::Ended(ExitStatus::from_raw(0));
        let first = "disk0 publishes its CMB as p2pmem".to_owned();
        assert_eq!(row(&ended, 0), Some(first.clone()));
        assert_eq!(row(&Ending::TimedOut(9), 0), Some(first));
        assert_eq!(row(&ended, all), None);
        assert_eq!(row(&Ending::ServerDied("nvme".to_owned()), 0), None);
        assert_eq!(row(&Ending::Signal(2), 0), None);
    }
}
