//! The report of the guest's agent so far.

use std::collections::VecDeque;
use std::fs::File;

use anyhow::Context;
use peerbar_flight::monotonic_ns;
use peerbar_report::{
    Check, Evidence, KtapError, KtapReader, Line, Measure, ProgramReport, Subtest, Verdict,
    reported_name,
};
use serde::{Deserialize, Serialize};

use crate::bounded_file::BoundedFile;

/// File in the folder of a run: its results as KTAP.
pub(crate) const REPORT: &str = "report.ktap";
/// Longest report in bytes.
const LARGEST: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };
/// Most diagnostic lines that are kept for one check, and most bytes of them; the file has them
/// all.
const MOST_DIAGNOSTICS: usize = 200;
const MOST_DIAGNOSTIC_BYTES: usize = 64 << 10;
/// Most pieces of evidence that are kept: decisions on many pairs.
const MOST_EVIDENCE: usize = 10_000;
/// Most functions among them. A picture of a run has them all.
const MOST_FUNCTIONS: usize = 1024;
/// Longest name of a function or its driver: a disk's name is a serial number of 20 bytes (NVMe
/// Base 2.0, 5.17.2.1), a driver's one of a module.
const LONGEST_NAME: usize = 64;
/// Most results that are kept.
const MOST_ROWS: usize = 100_000;
/// Most bytes of subtests that are kept of a run.
const MOST_NESTED: usize = if cfg!(test) { 1 << 18 } else { 4 << 20 };

/// The report of one boot.
pub struct Report {
    file: BoundedFile,
    is_empty: bool,
    is_ready: bool,
    reader: KtapReader,
    pending: Pending,
    /// The names of the checks without a result yet.
    awaited: VecDeque<String>,
    rows: Vec<Row>,
    evidence: Vec<Evidence>,
    /// Number of bytes of subtests so far.
    nested_bytes: usize,
    /// Begin of the next check, as far as is known: CLOCK_MONOTONIC in nanoseconds.
    began_ns: u64,
    times: Vec<CheckTime>,
}

/// The time of a check, by the host's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTime {
    /// Name of the check.
    pub name: String,
    /// Its result: `pass`, `fail` or `skip`.
    pub verdict: String,
    /// Time of the result before it, or of the request for it: CLOCK_MONOTONIC in nanoseconds.
    pub began_ns: u64,
    /// Time of its result.
    pub ended_ns: u64,
}

/// Figures, subtests and diagnostics of the check that has no result yet.
#[derive(Default)]
struct Pending {
    measure: Option<Measure>,
    diagnostics: Vec<String>,
    /// Lines of subtests.
    nested: String,
}

impl Pending {
    /// Returns `true` if a diagnostic can be stored.
    fn has_room_for(&self, text: &str) -> bool {
        let bytes: usize = self.diagnostics.iter().map(String::len).sum();
        self.diagnostics.len() < MOST_DIAGNOSTICS
            && bytes.saturating_add(text.len()) <= MOST_DIAGNOSTIC_BYTES
    }
}

/// One check's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the check.
    pub name: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its figures.
    pub measure: Measure,
    /// Diagnostics of the agent about it.
    pub diagnostics: Vec<String>,
    /// Subtests that the program has reported.
    pub subtests: Vec<Subtest>,
}

impl Report {
    /// A report that is kept in `file`; of an interactive guest the plan line follows the results.
    pub fn new(file: File, interactive: bool) -> Self {
        let reader = if interactive {
            KtapReader::with_plan_last()
        } else {
            KtapReader::new()
        };
        Self {
            file: BoundedFile::new(file, LARGEST),
            is_empty: true,
            is_ready: false,
            reader,
            pending: Pending::default(),
            awaited: VecDeque::new(),
            rows: Vec::new(),
            evidence: Vec::new(),
            nested_bytes: 0,
            began_ns: monotonic_ns(),
            times: Vec::new(),
        }
    }

    /// Notes that the guest was asked for a check, after those before. A result with the name of
    /// another one fails.
    pub(crate) fn await_result(&mut self, check: &Check) {
        self.awaited.push_back(reported_name(&check.name()));
    }

    /// Records that the next check begins now.
    pub(crate) fn check_begins(&mut self) {
        self.began_ns = monotonic_ns();
    }

    /// Returns the times of all checks with a result.
    pub fn times(&self) -> &[CheckTime] {
        &self.times
    }

    /// Takes the next bytes and returns the lines that they complete.
    pub fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<Line>> {
        let bytes = self.file.take(bytes).context("cannot write the report")?;
        self.is_empty &= bytes.is_empty();
        let lines = self.reader.feed(bytes);
        for line in &lines {
            self.account(line);
        }
        Ok(lines)
    }

    /// Returns `true` if every announced check has a result.
    pub fn complete(&self) -> bool {
        self.reader.complete()
    }

    /// Returns `true` if the guest has reported that all devices are there.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns the results until now.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns `true` if nothing has been reported.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Returns the guest's evidence about peer-to-peer DMA.
    pub fn evidence(&self) -> &[Evidence] {
        &self.evidence
    }

    /// Ends the report. Returns its rows, the last diagnostics, which belong to no result, and the
    /// error in the report.
    pub fn finish(self) -> (Vec<Row>, Vec<String>, Result<(), KtapError>) {
        (self.rows, self.pending.diagnostics, self.reader.finish())
    }

    fn account(&mut self, line: &Line) {
        match line {
            Line::Measure(measure) => self.pending.measure = Some(measure.clone()),
            Line::Evidence(evidence) if self.has_room_for(evidence) => {
                self.evidence.push(evidence.clone());
            }
            Line::Diagnostic(text) if self.pending.has_room_for(text) => {
                self.pending.diagnostics.push(text.clone());
            }
            Line::Nested(text) if self.nested_bytes.saturating_add(text.len()) < MOST_NESTED => {
                self.nested_bytes = self
                    .nested_bytes
                    .saturating_add(text.len())
                    .saturating_add(1);
                self.pending.nested.push_str(text);
                self.pending.nested.push('\n');
            }
            Line::Result { name, verdict, .. } if self.rows.len() < MOST_ROWS => {
                let Pending {
                    measure,
                    mut diagnostics,
                    nested,
                } = std::mem::take(&mut self.pending);
                let awaited = self.awaited.pop_front();
                let other = awaited.filter(|awaited| awaited != name);
                let verdict = match other {
                    Some(awaited) => {
                        diagnostics.push(format!(
                            "the guest reports a result of `{name}` where that of `{awaited}` is due"
                        ));
                        &Verdict::Fail
                    }
                    None => verdict,
                };
                let ended_ns = monotonic_ns();
                self.times.push(CheckTime {
                    name: name.clone(),
                    verdict: verdict.word().to_owned(),
                    began_ns: std::mem::replace(&mut self.began_ns, ended_ns),
                    ended_ns,
                });
                let measure = measure.unwrap_or_default();
                self.rows.push(Row {
                    name: name.clone(),
                    verdict: verdict.clone(),
                    measure,
                    diagnostics,
                    subtests: ProgramReport::read(&nested)
                        .map_or_else(Vec::new, |report| report.results),
                });
            }
            Line::Ready(_) => {
                self.is_ready = true;
                self.check_begins();
            }
            Line::Version
            | Line::Plan(_)
            | Line::Kill(_)
            | Line::Counters(_)
            | Line::Evidence(_)
            | Line::Nested(_)
            | Line::Result { .. }
            | Line::Output(_)
            | Line::Diagnostic(_)
            | Line::Unknown(_) => {}
        }
    }

    /// Returns `true` if a piece of evidence can be stored. Pictures and explanations multiply the
    /// output of a guest.
    fn has_room_for(&self, evidence: &Evidence) -> bool {
        let is_function = |evidence: &&Evidence| matches!(evidence, Evidence::Function(_));
        let is_plausible = match evidence {
            Evidence::Function(function) => {
                let names = [
                    Some(&function.address),
                    function.name.as_ref(),
                    Some(&function.parent),
                    function.driver.as_ref(),
                    function.iommu_group.as_ref().map(|group| &group.kind),
                ];
                let mut names = names.into_iter().flatten();
                names.all(|name| name.len() <= LONGEST_NAME)
                    && self.evidence.iter().filter(is_function).count() < MOST_FUNCTIONS
            }
            _ => true,
        };
        is_plausible && self.evidence.len() < MOST_EVIDENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_of_another_check_than_the_awaited_one_fails() {
        let mut report = Report::new(tempfile::tempfile().unwrap(), false);
        let reset = |device: &str| {
            let json = format!(r#"{{"kind":"controller-reset","device":"{device}"}}"#);
            serde_json::from_str::<Check>(&json).unwrap()
        };
        let names = [reset("a").name(), reset("b").name()];
        report.await_result(&reset("a"));
        report.await_result(&reset("b"));
        let text = format!("KTAP version 1\n1..2\nok 1 - {0}\nok 2 - {0}\n", names[0]);
        report.take(text.as_bytes()).unwrap();
        let [first, second] = report.rows() else {
            panic!("{:?}", report.rows())
        };
        assert_eq!(first.verdict, Verdict::Pass);
        assert_eq!(second.verdict, Verdict::Fail);
        assert!(second.diagnostics[0].contains(&names[1]), "{second:?}");
    }

    #[test]
    fn row_has_figures_and_diagnostics_before_its_result() {
        let mut report = Report::new(tempfile::tempfile().unwrap(), false);
        let measure = r##"# measure {"sizes":"4K","bytes":4096,"seconds":0.5,"routes":{"own-bar":4096},"peer_bytes":4096,"ram_bytes":0}"##;
        let text = format!(
            "KTAP version 1\n1..2\n# ready 7\n  KTAP version 1\n  1..1\n  ok 1 - a\n{measure}\n# output b\n# why\nnot ok 1 - copy\nok 2 - reset\n# after"
        );
        report.take(text.as_bytes()).unwrap();
        assert!(report.complete());
        let [first, second] = report.times() else {
            panic!("{:?}", report.times())
        };
        assert_eq!(
            (first.name.as_str(), first.verdict.as_str()),
            ("copy", "fail")
        );
        assert!(0 < first.began_ns && first.began_ns <= first.ended_ns);
        assert_eq!(first.ended_ns, second.began_ns);
        let (rows, rest, end) = report.finish();
        let [copy, reset] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        assert_eq!(
            (copy.name.as_str(), &copy.verdict),
            ("copy", &Verdict::Fail)
        );
        assert_eq!(
            (copy.measure.peer_bytes, copy.diagnostics.as_slice()),
            (4096, ["why".to_owned()].as_slice())
        );
        assert_eq!((copy.subtests.len(), reset.subtests.len()), (1, 0));
        assert_eq!(
            (reset.name.as_str(), &reset.verdict),
            ("reset", &Verdict::Pass)
        );
        assert_eq!((rest, end), (Vec::new(), Ok(())));
    }

    #[test]
    fn report_of_requests_is_complete_with_its_plan_line() {
        let mut report = Report::new(tempfile::tempfile().unwrap(), true);
        report
            .take(b"KTAP version 1\n# ready 7\nok 1 - a\n")
            .unwrap();
        assert_eq!(report.rows().len(), 1);
        assert!(!report.complete());
        report.take(b"1..1\n").unwrap();
        assert!(report.complete());
        assert_eq!(report.finish().2, Ok(()));
    }

    #[test]
    fn functions_beyond_any_machine_are_not_kept() {
        let mut report = Report::new(tempfile::tempfile().unwrap(), false);
        let function = |address: &str| {
            let line = r##"# evidence {"function":{"address":"ADDRESS","parent":"pci0000:00","vendor":1,"device":2,"class":3}}"##;
            line.replace("ADDRESS", address) + "\n"
        };
        report.take(function(&"0".repeat(65)).as_bytes()).unwrap();
        assert!(report.evidence().is_empty());
        report
            .take(function("0000:01:00.0").repeat(1025).as_bytes())
            .unwrap();
        assert_eq!(report.evidence().len(), MOST_FUNCTIONS);
        let message = "# evidence {\"message\":\"a\"}\n";
        report.take(message.as_bytes()).unwrap();
        assert_eq!(report.evidence().len(), MOST_FUNCTIONS + 1);
    }

    #[test]
    fn subtests_of_a_run_have_a_limit() {
        let mut report = Report::new(tempfile::tempfile().unwrap(), false);
        report
            .take("  ok 1 - a\n".repeat(30_000).as_bytes())
            .unwrap();
        let kept = report.pending.nested.len();
        assert!((MOST_NESTED - 20..=MOST_NESTED).contains(&kept));
    }

    #[test]
    fn a_report_without_end_is_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut report = Report::new(file.reopen().unwrap(), false);
        report.take(b"KTAP version 1\n1..1\n").unwrap();
        report.take(&b"# diagnostic\n".repeat(90_000)).unwrap();
        let written = file.as_file().metadata().unwrap().len();
        assert_eq!(usize::try_from(written).unwrap(), LARGEST);
        assert_eq!(report.pending.diagnostics.len(), MOST_DIAGNOSTICS);
        report.take(b"ok 1 - late\n").unwrap();
        assert!(!report.complete());
    }
}
