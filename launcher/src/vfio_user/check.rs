//! `peerbar vfio-user check`: the conformance test of a server, with a KTAP report.

use std::fmt;
use std::io::{self, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::parent_death;
use peerbar_lab::terminal::{print, say};
use peerbar_report::{KtapWriter, Verdict as Reported};
use peerbar_vfio_user_check::{Checker, Options, Source, StartError, Test, Verdict, tests};

use crate::cli::VfioUserCheck;

/// Checks a server, or lists the tests.
pub(super) fn check(options: &VfioUserCheck) -> Result<ExitCode, Failure> {
    let tests = chosen(options)?;
    let Some(socket) = &options.socket else {
        return list(&tests);
    };
    let checker = Checker::new(checker_options(options, socket)?);
    let checker = checker.map_err(start_failure)?;
    let counts = run(checker, &tests).context("cannot write the report")?;
    say(format_args!("peerbar: {counts}"));
    let outcome = match counts.is_clean() {
        true => RunOutcome::Passed,
        false => RunOutcome::Failed,
    };
    Ok(ExitCode::from(outcome.code()))
}

/// Returns the tests that the user wants.
fn chosen(options: &VfioUserCheck) -> Result<Vec<Test>, Failure> {
    let all = tests();
    let unknown = options
        .tests
        .iter()
        .find(|word| !all.iter().any(|test| test.is_named(word)));
    if let Some(word) = unknown {
        return Err(Failure::Usage(anyhow!(
            "no test or group {word}: `peerbar vfio-user check --list` prints them"
        )));
    }
    let is_chosen = |test: &Test| {
        let is_specified = matches!(test.source, Source::Specification { .. });
        let is_named = options.tests.iter().any(|word| test.is_named(word));
        (options.tests.is_empty() || is_named) && (is_specified || !options.specification_only)
    };
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn checker_options(options: &VfioUserCheck, socket: &Path) -> Result<Options, Failure> {
    let command = match options.command.as_slice() {
        [] => Vec::new(),
        words => [&parent_death::words()?[..], words].concat(),
    };
    Ok(Options {
        socket: socket.to_owned(),
        command,
        time_out: options.timeout.0,
        bars: options.bars,
        reset: options.reset,
    })
}

fn start_failure(error: StartError) -> Failure {
    let failure = anyhow!(error);
    match failure.downcast_ref() {
        Some(StartError::NoServer { .. } | StartError::InUse(_)) => Failure::Usage(failure),
        _ => Failure::Failed(failure),
    }
}

/// Prints the tests with their sources.
fn list(tests: &[Test]) -> Result<ExitCode, Failure> {
    let lines = tests
        .iter()
        .map(|test| format!("{:<32} {}", test.to_string(), test.source));
    print(&lines.collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The number of tests with each outcome.
#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Tests that were not run, because the server serves nobody.
    not_run: usize,
}

impl Counts {
    fn is_clean(&self) -> bool {
        self.failed == 0 && self.not_run == 0
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        match self.not_run {
            0 => Ok(()),
            not_run => write!(f, ", {not_run} not run"),
        }
    }
}

/// Runs tests and reports them.
fn run(mut checker: Checker, tests: &[Test]) -> io::Result<Counts> {
    let mut report = KtapWriter::new(stdout());
    report.begin(u32::try_from(tests.len()).ok())?;
    let mut counts = Counts::default();
    for (number, test) in tests.iter().enumerate() {
        let verdict = checker.run(test);
        write_result(&mut report, test, &verdict)?;
        match verdict {
            Verdict::Pass => counts.passed += 1,
            Verdict::Fail(_) => counts.failed += 1,
            Verdict::Skip(_) => counts.skipped += 1,
        }
        if let Some(reason) = checker.bail_out() {
            report.bail_out(reason)?;
            counts.not_run = tests.len().saturating_sub(number).saturating_sub(1);
            break;
        }
    }
    Ok(counts)
}

/// Writes a result. The diagnostics of a failure come before it, as KTAP has them.
fn write_result(
    report: &mut KtapWriter<io::Stdout>,
    test: &Test,
    verdict: &Verdict,
) -> io::Result<()> {
    let reported = match verdict {
        Verdict::Pass => Reported::Pass,
        Verdict::Skip(reason) => Reported::Skip(reason.clone()),
        Verdict::Fail(lines) => {
            for line in lines {
                report.diagnostic(line)?;
            }
            report.diagnostic(&format!("source: {}", test.source))?;
            Reported::Fail
        }
    };
    report.verdict(&test.to_string(), &reported)
}
