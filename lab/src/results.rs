//! The results of a run for programs: `results.json`.
//!
//! `docs/schema/run-1.json` is its JSON schema, generated from the structs here. A reader ignores
//! fields that it does not know.

use peerbar_report::{Check, Measure, Nested, Pair, Subtest, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::Display;

use crate::report::Row;
use crate::scenario::Scenario;
use crate::started::{Started, Versions};
use crate::utc::UtcTime;
use crate::verdict::RunVerdict;

/// File in a run's folder: [`RunResults`].
pub const RESULTS: &str = "results.json";
/// Version of the file. It changes with incompatible changes.
pub const FORMAT: u32 = 1;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResults {
    /// Version of this format: 1.
    pub format: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// The verdict, with the reason.
    pub verdict: RunVerdict,
    /// Exit code of `peerbar run`.
    pub exit_code: u8,
    /// Time of QEMU's start.
    pub started: UtcTime,
    /// From QEMU's start to its end.
    pub seconds: f64,
    /// The series that it belongs to: that of all runs of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Versions of its parts.
    pub versions: Versions,
    /// The results of its checks, in order.
    pub checks: Vec<CheckResult>,
    /// Names of the checks that have no result, because the run ended before.
    pub not_run: Vec<String>,
}

/// A check's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckResult {
    /// Its name.
    pub name: String,
    /// Its kind, as in a scenario, or none for a check that only a test requested.
    #[serde(default)]
    pub kind: Option<String>,
    /// Its result.
    pub verdict: CheckStatus,
    /// The reason why it was skipped, if it was.
    #[serde(default)]
    pub skipped: Option<String>,
    /// Its figures.
    pub measure: Measure,
    /// Diagnostics of the agent about it.
    pub diagnostics: Vec<String>,
    /// Results that the program has reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subtests: Vec<SubtestResult>,
    /// The pairs between which it moves data from peer to peer, or tries to.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// Number of the check, from 1, that moves the same data by way of guest RAM, to compare with.
    #[serde(default)]
    pub control: Option<usize>,
}

/// A result that a program has reported by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubtestResult {
    /// Its name.
    pub name: String,
    /// Its result. An expected failure (`TODO`, `XFAIL`) is none.
    pub verdict: CheckStatus,
    /// The reason why it was skipped, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Diagnostics of the program about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<String>,
    /// Its parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subtests: Vec<SubtestResult>,
}

impl Nested for SubtestResult {
    fn name(&self) -> &str {
        &self.name
    }

    fn parts(&self) -> &[Self] {
        &self.subtests
    }
}

/// Result of a check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CheckStatus {
    /// It passed.
    #[default]
    Pass,
    /// It failed.
    Fail,
    /// It could not be run.
    Skip,
}

impl CheckResult {
    /// Returns `true` if the check passed.
    pub fn passed(&self) -> bool {
        self.verdict == CheckStatus::Pass
    }

    /// Returns the result `row` of `check`.
    pub(crate) fn of(row: &Row, check: Option<&Check>, checks: &[Check]) -> Self {
        let (verdict, skipped) = status(&row.verdict);
        let control = check.and_then(|check| check.control_among(checks));
        Self {
            name: row.name.clone(),
            kind: check.map(|check| check.kind().to_owned()),
            verdict,
            skipped,
            measure: row.measure.clone(),
            diagnostics: row.diagnostics.clone(),
            subtests: row.subtests.iter().map(SubtestResult::of).collect(),
            pairs: check.map(Check::pairs).unwrap_or_default(),
            control: control.map(|index| index.saturating_add(1)),
        }
    }
}

impl SubtestResult {
    fn of(subtest: &Subtest) -> Self {
        let (verdict, skipped) = status(&subtest.verdict);
        Self {
            name: subtest.name.clone(),
            verdict,
            skipped,
            diagnostics: subtest.diagnostics.clone(),
            subtests: subtest.subtests.iter().map(Self::of).collect(),
        }
    }
}

/// Returns a verdict in the form of the results, and the reason why the check was skipped.
fn status(verdict: &Verdict) -> (CheckStatus, Option<String>) {
    match verdict {
        Verdict::Pass => (CheckStatus::Pass, None),
        Verdict::Fail => (CheckStatus::Fail, None),
        Verdict::Skip(reason) => (CheckStatus::Skip, Some(reason.clone())),
    }
}

impl RunResults {
    /// Returns the results of a run of `scenario` that has just ended.
    pub(crate) fn of(
        scenario: &Scenario,
        verdict: &RunVerdict,
        rows: &[Row],
        seconds: f64,
        started: Started,
    ) -> Self {
        let checks = &scenario.checks;
        let result = |(number, row)| CheckResult::of(row, checks.get(number), checks);
        let not_run = scenario.check_names().into_iter().skip(rows.len());
        Self {
            format: FORMAT,
            scenario: scenario.name.clone(),
            verdict: verdict.clone(),
            exit_code: verdict.outcome.code(),
            started: UtcTime::ago(seconds),
            seconds,
            series: started.series,
            versions: started.versions,
            checks: rows.iter().enumerate().map(result).collect(),
            not_run: not_run.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::RunOutcome;

    #[test]
    fn check_without_result_is_listed_as_not_run() {
        let scenario = Scenario::demo().unwrap();
        let row = |verdict| Row {
            name: "x".to_owned(),
            verdict,
            measure: Measure::default(),
            diagnostics: Vec::new(),
            subtests: vec![Subtest {
                name: "a".to_owned(),
                verdict: Verdict::Skip("no b".to_owned()),
                diagnostics: Vec::new(),
                subtests: Vec::new(),
            }],
        };
        let verdict = RunVerdict {
            outcome: RunOutcome::TimedOut,
            reason: "late".to_owned(),
        };
        let rows = [
            row(Verdict::Pass),
            row(Verdict::Skip("no fio".to_owned())),
            row(Verdict::Fail),
        ];
        let results = RunResults::of(
            &scenario,
            &verdict,
            &rows,
            2.5,
            Started::now(None, Versions::default()),
        );
        assert_eq!((results.exit_code, results.checks.len()), (124, 3));
        assert_eq!(results.checks[0].kind.as_deref(), Some("provider"));
        assert_eq!(results.checks[1].skipped.as_deref(), Some("no fio"));
        let copy = &results.checks[2];
        assert_eq!(copy.subtests[0].skipped.as_deref(), Some("no b"));
        assert_eq!((copy.pairs.len(), copy.control), (2, Some(6)));
        assert_eq!(results.not_run.len(), scenario.checks.len() - 3);
        assert_eq!(results.not_run[0], "disk1 to disk0 through disk0's CMB");
        let text = serde_json::to_string(&results).unwrap();
        assert_eq!(serde_json::from_str::<RunResults>(&text).unwrap(), results);
    }
}
