//! The verdict and the results of a run of several guests.

use std::io;

use anyhow::Context;
use peerbar_report::{Check, KtapWriter, Measure};

use crate::exit::RunOutcome;
use crate::finished_run::Concluded;
use crate::folder::Folder;
use crate::lab_error::LabError;
use crate::report::{REPORT, Row};
use crate::results::{CheckResult, FORMAT, RESULTS, RunResults};
use crate::scenario::{GroupGuest, GuestGroup};
use crate::utc::UtcTime;
use crate::verdict::{RunVerdict, unsuccessful};

/// Everything that determines the verdict on a run of several guests.
pub(crate) struct Judged<'a> {
    pub(crate) group: &'a GuestGroup,
    pub(crate) guests: Vec<(&'a GroupGuest, Concluded)>,
    pub(crate) across: Vec<(Check, Row)>,
    pub(crate) failure: Option<&'a LabError>,
    pub(crate) of_fabric: Option<String>,
}

impl Judged<'_> {
    /// Returns the verdict on the whole run. Its reason names all problems: the error that ended
    /// the run, or each guest with a problem, then the failed checks, and the problem of the
    /// fabric.
    pub(crate) fn verdict(&self) -> RunVerdict {
        if let Some(error) = self.failure {
            let ended = Some(error.to_string());
            let checks = unsuccessful(&self.rows(), self.group.check_names().len(), "checks");
            return RunVerdict {
                outcome: error.outcome(),
                reason: ended
                    .into_iter()
                    .chain(checks)
                    .collect::<Vec<_>>()
                    .join("; "),
            };
        }
        let verdicts = self
            .guests
            .iter()
            .map(|(guest, concluded)| (guest, &concluded.verdict));
        let bad = verdicts.filter(|(_, verdict)| verdict.outcome != RunOutcome::Passed);
        let bad: Vec<_> = bad.collect();
        let mut reasons: Vec<String> = bad
            .iter()
            .map(|(guest, verdict)| guest.name_of(&verdict.reason))
            .collect();
        let across: Vec<Row> = self.across.iter().map(|(_, row)| row.clone()).collect();
        reasons.extend(unsuccessful(&across, 0, "checks across guests"));
        reasons.extend(self.of_fabric.clone());
        if reasons.is_empty() {
            return RunVerdict {
                outcome: RunOutcome::Passed,
                reason: self.all_passed(),
            };
        }
        RunVerdict {
            outcome: bad
                .first()
                .map_or(RunOutcome::Failed, |(_, verdict)| verdict.outcome),
            reason: reasons.join("; "),
        }
    }

    fn all_passed(&self) -> String {
        let (checks, guests) = (self.rows().len(), self.guests.len());
        match checks {
            0 => "no check was asked for, and nothing failed".to_owned(),
            _ => format!("all {checks} checks passed, in and between {guests} guests"),
        }
    }

    /// Returns all results, by names that tell the guests apart.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let of_guests = self.guests.iter().flat_map(|(guest, concluded)| {
            concluded.rows.iter().map(|row| Row {
                name: guest.name_of(&row.name),
                ..row.clone()
            })
        });
        let across = self.across.iter().map(|(_, row)| row.clone());
        of_guests.chain(across).collect()
    }

    /// Writes results and report into the run's folder.
    pub(crate) fn write(
        &self,
        folder: &Folder,
        verdict: &RunVerdict,
        rows: &[Row],
        seconds: f64,
    ) -> anyhow::Result<()> {
        folder.write_json(RESULTS, &self.results(folder, verdict, seconds))?;
        let mut report = KtapWriter::new(folder.file(REPORT)?);
        let mut write = || -> io::Result<()> {
            report.begin(Some(u32::try_from(rows.len()).unwrap_or(u32::MAX)))?;
            for row in rows {
                row.diagnostics
                    .iter()
                    .try_for_each(|line| report.diagnostic(line))?;
                let measure = Measure {
                    subtests: row.subtests.clone(),
                    ..row.measure.clone()
                };
                report.result(&row.name, &row.verdict, &measure)?;
            }
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", folder.path().join(REPORT).display()))
    }

    fn results(&self, folder: &Folder, verdict: &RunVerdict, seconds: f64) -> RunResults {
        let checks = self.check_results();
        let mut not_run = self.group.check_names();
        for check in &checks {
            if let Some(done) = not_run.iter().position(|name| *name == check.name) {
                not_run.remove(done);
            }
        }
        let first = self.guests.first();
        let versions = first.map(|(_, concluded)| concluded.results.versions.clone());
        RunResults {
            format: FORMAT,
            scenario: self.group.name.clone(),
            verdict: verdict.clone(),
            exit_code: verdict.outcome.code(),
            started: UtcTime::ago(seconds),
            seconds,
            series: folder.series().map(str::to_owned),
            versions: versions.unwrap_or_default(),
            checks,
            not_run,
        }
    }

    fn check_results(&self) -> Vec<CheckResult> {
        let mut all: Vec<CheckResult> = Vec::new();
        for (guest, concluded) in &self.guests {
            let before = all.len();
            let results = concluded.results.checks.iter();
            all.extend(results.map(|result| CheckResult {
                name: guest.name_of(&result.name),
                control: result.control.map(|number| number.saturating_add(before)),
                ..result.clone()
            }));
        }
        let before = all.len();
        let checks = self.across.iter().map(|(check, _)| check.clone());
        let checks: Vec<Check> = checks.collect();
        for (check, (_, row)) in checks.iter().zip(&self.across) {
            let result = CheckResult::of(row, Some(check), &checks);
            all.push(CheckResult {
                control: result.control.map(|number| number.saturating_add(before)),
                ..result
            });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use peerbar_report::{Rdma, RdmaMemory, Verdict};

    use super::*;
    use crate::verdict::Ending;

    fn group() -> GuestGroup {
        let text =
            "name = \"x\"\n[[guest]]\nname = \"left\"\n[[nic]]\nname = \"a\"\nguest = \"left\"\n";
        GuestGroup::parse_interactive(Path::new("x.toml"), text)
            .unwrap()
            .unwrap()
    }

    fn across(verdict: Verdict) -> (Check, Row) {
        let check = Rdma {
            nic: "a".to_owned(),
            peer: "b".to_owned(),
            from: RdmaMemory::GuestRam,
            to: RdmaMemory::GuestRam,
            sizes: vec![64],
            seconds: None,
        };
        let row = Row {
            name: "across".to_owned(),
            verdict,
            measure: Measure::default(),
            diagnostics: vec!["why".to_owned()],
            subtests: Vec::new(),
        };
        (Check::Rdma(check), row)
    }

    fn judged<'a>(group: &'a GuestGroup, across: Vec<(Check, Row)>) -> Judged<'a> {
        Judged {
            group,
            guests: Vec::new(),
            across,
            failure: None,
            of_fabric: None,
        }
    }

    #[test]
    fn run_passes_only_without_any_failure() {
        let group = group();
        let pass = || vec![across(Verdict::Pass)];
        let verdict = judged(&group, pass()).verdict().to_string();
        assert_eq!(
            verdict,
            "passed: all 1 checks passed, in and between 0 guests"
        );
        let failed = vec![across(Verdict::Pass), across(Verdict::Fail)];
        let verdict = judged(&group, failed).verdict().to_string();
        assert_eq!(
            verdict,
            "failed: 1 of 2 checks across guests did not pass: across"
        );
        let died =
            LabError::Ended(Ending::ServerDied("server a ended".to_owned())).of_guest("left");
        let died = Judged {
            failure: Some(&died),
            ..judged(&group, pass())
        };
        assert_eq!(died.verdict().to_string(), "failed: left: server a ended");
        let fabric = Judged {
            of_fabric: Some("server fabric ended".to_owned()),
            ..judged(&group, pass())
        };
        assert_eq!(fabric.verdict().to_string(), "failed: server fabric ended");
    }

    #[test]
    fn results_of_a_group_are_left_as_ktap_and_json() {
        let runs = tempfile::tempdir().unwrap();
        let folder = Folder::named(runs.path(), "x").unwrap();
        let group = group();
        let judged = judged(&group, vec![across(Verdict::Fail)]);
        let (verdict, rows) = (judged.verdict(), judged.rows());
        judged.write(&folder, &verdict, &rows, 1.5).unwrap();
        let report = fs::read_to_string(folder.path().join(REPORT)).unwrap();
        assert!(
            report.starts_with("KTAP version 1\n1..1\n# why\n"),
            "{report}"
        );
        assert!(report.ends_with("not ok 1 - across\n"), "{report}");
        let results = fs::read(folder.path().join(RESULTS)).unwrap();
        let results: RunResults = serde_json::from_slice(&results).unwrap();
        assert_eq!(
            (results.exit_code, results.checks[0].kind.as_deref()),
            (1, Some("rdma"))
        );
        assert!(results.not_run.is_empty());
    }
}
