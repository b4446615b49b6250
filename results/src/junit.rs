//! JUnit XML, in the form that the readers of GitHub, GitLab and Jenkins accept.

use std::io;

use peerbar_lab::exit::RunOutcome;
use peerbar_lab::results::{CheckResult, CheckStatus, RunResults, SubtestResult};
use peerbar_report::Nested;

use crate::collection::{Collection, ReportedRun};
use crate::junit_file::{Case, Outcome, Suite, Trouble, write};
use crate::matrix::MatrixResults;

/// Returns a suite for each run and each matrix. Runs of one scenario have separate suites and
/// classes, named by [`Collection::run_names`], since readers distinguish cases by class and name.
/// Missing results of shards are in a separate suite, with an error for each.
pub fn junit(collection: &Collection) -> io::Result<String> {
    let runs = collection.run_names().into_iter().zip(&collection.runs);
    let mut suites: Vec<Suite> = runs.map(|(name, run)| run_suite(name, run)).collect();
    suites.extend(collection.matrices.iter().map(matrix_suite));
    if !collection.missing.is_empty() {
        let items = collection.missing.iter();
        let cases = items.map(|item| {
            let outcome = trouble(Trouble::Error, "missing", item);
            Case::new("peerbar.missing", item, outcome)
        });
        suites.push(Suite {
            name: "missing".to_owned(),
            cases: cases.collect(),
            ..Suite::default()
        });
    }
    write("peerbar", &suites)
}

fn run_suite(name: String, reported: &ReportedRun) -> Suite {
    let run = &reported.results;
    let class = |kind: Option<&str>| match kind {
        Some(kind) => format!("peerbar.{name}.{kind}"),
        None => format!("peerbar.{name}"),
    };
    let mut cases = Vec::new();
    for check in &run.checks {
        let class = class(check.kind.as_deref());
        let whole = Case::new(&class, &check.name, outcome(check));
        cases.push(whole.lasting(check.measure.seconds));
        let leaves = SubtestResult::leaves(&check.subtests).into_iter();
        cases.extend(leaves.map(|(name, leaf)| {
            let name = format!("{} / {name}", check.name);
            Case::new(&class, &name, subtest_outcome(leaf))
        }));
    }
    cases.extend(run.not_run.iter().map(|name| {
        let skipped = Outcome::Skipped(format!("not run: {}", run.verdict));
        Case::new(&class(None), name, skipped)
    }));
    let mut output = String::new();
    if run.verdict.outcome != RunOutcome::Passed {
        let outcome = trouble(Trouble::Error, outcome_word(run), &run.verdict.reason);
        cases.push(Case::new(&class(None), "the run as a whole", outcome));
        output = reported.console_tail();
    }
    let versions = &run.versions;
    let properties = [
        ("peerbar", &versions.peerbar),
        ("qemu", &versions.qemu),
        ("kernel", &versions.kernel),
    ];
    Suite {
        timestamp: Some(run.started.to_milliseconds()),
        seconds: Some(run.seconds),
        properties: properties.map(|(key, value)| (key, value.clone())).into(),
        output,
        cases,
        name,
    }
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

fn outcome(check: &CheckResult) -> Outcome {
    let kind = check.kind.as_deref().unwrap_or("check");
    of_verdict(check.verdict, kind, &check.diagnostics, &check.skipped)
}

fn subtest_outcome(subtest: &SubtestResult) -> Outcome {
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
) -> Outcome {
    match verdict {
        CheckStatus::Pass => Outcome::Success,
        CheckStatus::Fail => trouble(Trouble::Failure, what, &diagnostics.join("\n")),
        CheckStatus::Skip => Outcome::Skipped(skipped.clone().unwrap_or_default()),
    }
}

fn matrix_suite(matrix: &MatrixResults) -> Suite {
    let cells = matrix.cells.iter().map(|cell| {
        let [cpu, iommu, topology, flow] = cell.coordinates();
        let outcome = match &cell.disagreement {
            None => Outcome::Success,
            Some(reason) => trouble(Trouble::Failure, "disagreement", reason),
        };
        Case::new(
            &format!("peerbar.matrix.{cpu}.{iommu}"),
            &format!("{topology}, {flow}"),
            outcome,
        )
    });
    let flaws = matrix.flaws.iter().map(|flaw| {
        let outcome = trouble(Trouble::Error, "boot", flaw);
        Case::new("peerbar.matrix", "a boot as a whole", outcome)
    });
    Suite {
        name: format!("matrix of {}", matrix.device),
        seconds: Some(matrix.seconds),
        properties: vec![("kernel", matrix.versions.kernel.clone())],
        cases: cells.chain(flaws).collect(),
        ..Suite::default()
    }
}

fn trouble(kind: Trouble, what: &str, text: &str) -> Outcome {
    Outcome::Trouble {
        kind,
        what: what.to_owned(),
        text: text.to_owned(),
    }
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
            <skipped message="not run: timed out: the guest did not finish within 90 s"/>
        </testcase>
        <testcase name="the run as a whole" classname="peerbar.demo">
            <error message="the guest did not finish within 90 s" type="timed-out">the guest did not finish within 90 s</error>
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
    fn checks_and_subtests_of_one_name_are_told_apart() {
        let mut run = samples::run();
        for _ in 0..2 {
            let double = run.checks[1].clone();
            run.checks.push(double);
        }
        let written = written(run);
        let count = |name: &str| {
            let case = format!("<testcase name=\"{name}\" classname=\"peerbar.demo.copy\"");
            written.matches(&case).count()
        };
        for name in ["copy #1", "copy #1 / suite / second"] {
            let names = [name.to_owned(), format!("{name} #2"), format!("{name} #3")];
            assert_eq!(names.map(|name| count(&name)), [1, 1, 1], "{written}");
        }
    }

    #[test]
    fn run_that_failed_has_a_case_for_its_reason() {
        let mut run = samples::run();
        run.verdict.outcome = RunOutcome::Failed;
        run.verdict.reason =
            "1 of 3 checks did not pass: copy; the console says: WARNING".to_owned();
        let reason = r#"<error message="1 of 3 checks did not pass: copy; the console says: WARNING" type="failed">"#;
        assert!(written(run.clone()).contains(reason));
        run.checks.truncate(1);
        assert!(written(run.clone()).contains(reason));
        run.verdict.outcome = RunOutcome::Passed;
        assert!(!written(run).contains("the run as a whole"));
    }
}
