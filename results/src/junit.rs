//! JUnit XML, as the readers of GitHub's, GitLab's and Jenkins' world take it.

use std::time::Duration;

use peerbar_lab::exit::RunOutcome;
use peerbar_lab::results::{CheckResult, CheckStatus, RunResults, SubtestResult};
use peerbar_report::Nested;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::collection::{Collection, ReportedRun};
use crate::matrix::MatrixResults;

/// A suite for each run and each matrix. Runs of one scenario have suites and classes of their own by [`Collection::run_names`], since
/// readers tell cases apart by class and name. What is missing of shards is a suite of its own, with an error for each.
pub fn junit(collection: &Collection) -> anyhow::Result<String> {
    let mut report = Report::new("peerbar");
    let runs = collection.run_names().into_iter().zip(&collection.runs);
    report.add_test_suites(runs.map(|(name, run)| run_suite(&name, run)));
    report.add_test_suites(collection.matrices.iter().map(matrix_suite));
    if !collection.missing.is_empty() {
        let mut suite = TestSuite::new("missing");
        suite.add_test_cases(collection.missing.iter().map(|item| {
            let status = non_success(NonSuccessKind::Error, "missing", item);
            case("peerbar.missing", item, status)
        }));
        report.add_test_suite(suite);
    }
    Ok(report.to_string()?)
}

fn run_suite(name: &str, reported: &ReportedRun) -> TestSuite {
    let run = &reported.results;
    let mut suite = TestSuite::new(name);
    suite.set_timestamp(run.started);
    suite.set_time(duration(run.seconds));
    let versions = &run.versions;
    for (name, version) in [
        ("peerbar", &versions.peerbar),
        ("qemu", &versions.qemu),
        ("kernel", &versions.kernel),
    ] {
        suite.add_property((name, version.as_str()));
    }
    let class = |kind: Option<&str>| match kind {
        Some(kind) => format!("peerbar.{name}.{kind}"),
        None => format!("peerbar.{name}"),
    };
    for check in &run.checks {
        let class = class(check.kind.as_deref());
        let mut whole = case(&class, &check.name, status(check));
        whole.set_time(duration(check.measure.seconds));
        suite.add_test_case(whole);
        let leaves = SubtestResult::leaves(&check.subtests).into_iter();
        suite.add_test_cases(leaves.map(|(name, leaf)| {
            let name = format!("{} / {name}", check.name);
            case(&class, &name, subtest_status(leaf))
        }));
    }
    suite.add_test_cases(run.not_run.iter().map(|name| {
        let mut status = TestCaseStatus::skipped();
        status.set_message(format!("not run: {}", run.verdict));
        case(&class(None), name, status)
    }));
    if let Some(reason) = beyond_its_checks(run) {
        let status = non_success(NonSuccessKind::Error, outcome_word(run), &reason);
        suite.add_test_case(case(&class(None), "the run as a whole", status));
        let console = reported.console_tail();
        if !console.is_empty() {
            suite.set_system_out(console);
        }
    }
    suite
}

/// What is wrong with a run that no failed check shows.
fn beyond_its_checks(run: &RunResults) -> Option<String> {
    let is_shown = run.verdict.outcome == RunOutcome::Failed
        && run
            .checks
            .iter()
            .any(|check| check.verdict == CheckStatus::Fail);
    let is_well = run.verdict.outcome == RunOutcome::Passed;
    (!is_shown && !is_well).then(|| run.verdict.reason.clone())
}

fn outcome_word(run: &RunResults) -> &'static str {
    match run.verdict.outcome {
        RunOutcome::Passed => "passed",
        RunOutcome::Failed => "failed",
        RunOutcome::TimedOut => "timed-out",
        RunOutcome::GuestDied => "guest-died",
        RunOutcome::Interrupted(_) => "interrupted",
    }
}

fn status(check: &CheckResult) -> TestCaseStatus {
    let kind = check.kind.as_deref().unwrap_or("check");
    of_verdict(check.verdict, kind, &check.diagnostics, &check.skipped)
}

fn subtest_status(subtest: &SubtestResult) -> TestCaseStatus {
    let SubtestResult {
        verdict,
        diagnostics,
        skipped,
        ..
    } = subtest;
    of_verdict(*verdict, "subtest", diagnostics, skipped)
}

fn of_verdict(
    verdict: CheckStatus,
    what: &str,
    diagnostics: &[String],
    skipped: &Option<String>,
) -> TestCaseStatus {
    match verdict {
        CheckStatus::Pass => TestCaseStatus::success(),
        CheckStatus::Fail => non_success(NonSuccessKind::Failure, what, &diagnostics.join("\n")),
        CheckStatus::Skip => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(skipped.clone().unwrap_or_default());
            status
        }
    }
}

fn matrix_suite(matrix: &MatrixResults) -> TestSuite {
    let mut suite = TestSuite::new(format!("matrix of {}", matrix.device));
    suite.set_time(duration(matrix.seconds));
    suite.add_property(("kernel", matrix.versions.kernel.as_str()));
    suite.add_test_cases(matrix.cells.iter().map(|cell| {
        let [cpu, iommu, topology, flow] = cell.coordinates();
        let status = match &cell.disagreement {
            None => TestCaseStatus::success(),
            Some(reason) => non_success(NonSuccessKind::Failure, "disagreement", reason),
        };
        case(
            &format!("peerbar.matrix.{cpu}.{iommu}"),
            &format!("{topology}, {flow}"),
            status,
        )
    }));
    suite.add_test_cases(matrix.flaws.iter().map(|flaw| {
        let status = non_success(NonSuccessKind::Error, "boot", flaw);
        case("peerbar.matrix", "a boot as a whole", status)
    }));
    suite
}

fn case(class: &str, name: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(class);
    case
}

/// A failure or an error: its message is the first line of `text`.
fn non_success(kind: NonSuccessKind, what: &str, text: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_type(what);
    status.set_message(text.lines().next().unwrap_or_default());
    status.set_description(text);
    status
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn written(run: RunResults) -> String {
        let run = ReportedRun {
            console: "[    1.0] <oops>\n".to_owned(),
            ..ReportedRun::of(run)
        };
        junit(&Collection {
            runs: vec![run],
            missing: vec!["scenarios: gpu".to_owned()],
            ..Collection::default()
        })
        .unwrap()
    }

    #[test]
    fn run_is_a_suite_with_a_case_for_each_check() {
        let expected = r##"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="peerbar" tests="8" skipped="2" failures="2" errors="2">
    <testsuite name="demo" tests="7" skipped="2" errors="1" failures="2" timestamp="2026-11-21T03:28:38.000+00:00" time="12.500">
        <properties>
            <property name="peerbar" value="0.1.0"/>
            <property name="qemu" value="11.1.3"/>
            <property name="kernel" value="7.3.4"/>
        </properties>
        <testcase name="disk0 to VRAM &lt;and&gt; back" classname="peerbar.demo.gpu-file" time="0.500"/>
        <testcase name="copy #1" classname="peerbar.demo.copy" time="0.000">
            <failure message="4096 bytes at offset 0: &quot;wrong&quot; &amp; &lt;late&gt;" type="copy">4096 bytes at offset 0: &quot;wrong&quot; &amp; &lt;late&gt;</failure>
        </testcase>
        <testcase name="copy #1 / suite / first" classname="peerbar.demo.copy"/>
        <testcase name="copy #1 / suite / second" classname="peerbar.demo.copy">
            <failure message="expected &lt;1&gt;" type="subtest">expected &lt;1&gt;</failure>
        </testcase>
        <testcase name="fio" classname="peerbar.demo" time="0.000">
            <skipped message="no fio"/>
        </testcase>
        <testcase name="reset" classname="peerbar.demo">
            <skipped message="not run: timed out: the guest was not done after 90 s"/>
        </testcase>
        <testcase name="the run as a whole" classname="peerbar.demo">
            <error message="the guest was not done after 90 s" type="timed-out">the guest was not done after 90 s</error>
        </testcase>
        <system-out>[    1.0] &lt;oops&gt;</system-out>
    </testsuite>
    <testsuite name="missing" tests="1" skipped="0" errors="1" failures="0">
        <testcase name="scenarios: gpu" classname="peerbar.missing">
            <error message="scenarios: gpu" type="missing">scenarios: gpu</error>
        </testcase>
    </testsuite>
</testsuites>
"##;
        assert_eq!(written(samples::run()), expected);
    }

    #[test]
    fn repeated_runs_have_suites_and_cases_of_their_own() {
        let run = || ReportedRun::of(samples::run());
        let mut other = run();
        other.results.scenario = "other".to_owned();
        let written = junit(&Collection {
            runs: vec![run(), other, run()],
            ..Collection::default()
        })
        .unwrap();
        let lines = |start: &str| -> Vec<String> {
            let lines = written.lines().map(str::trim_start);
            let found = lines.filter_map(|line| line.strip_prefix(start));
            let ends = found.map(|line| line.rsplit_once("\" t").map_or(line, |(start, _)| start));
            ends.map(str::to_owned).collect()
        };
        let suites: Vec<_> = lines("<testsuite name=\"");
        let names = suites.iter().filter_map(|suite| suite.split('"').next());
        assert_eq!(names.collect::<Vec<_>>(), ["demo #1", "other", "demo #2"]);
        let cases = lines("<testcase ");
        let mut distinct = cases.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!((cases.len(), distinct.len()), (21, 21), "{written}");
    }

    #[test]
    fn failure_that_a_check_shows_is_no_second_one() {
        let mut run = samples::run();
        run.verdict.outcome = RunOutcome::Failed;
        assert!(!written(run.clone()).contains("the run as a whole"));
        run.checks.truncate(1);
        assert!(written(run.clone()).contains("the run as a whole"));
        run.verdict.outcome = RunOutcome::Passed;
        assert!(!written(run).contains("the run as a whole"));
    }
}
