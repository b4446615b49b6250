//! Concurrent runs, each a job: a `peerbar run` of one scenario in a separate process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::{Context, anyhow};
use peerbar_lab::child::Child;
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::finished_run::VERDICT;
use peerbar_lab::folder::Folder;
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::progress::Progress;
use peerbar_lab::run_file;
use peerbar_lab::signals::Signals;
use peerbar_lab::table::{Cell, Style, Table};
use peerbar_lab::terminal::{colours, columns, print};

use super::{Series, wants_more};
use crate::cli;
use crate::jobs::{self, Jobs};
use crate::report;
use crate::run::{self, EndedRun};
use crate::runnable::Runnable;

/// File in a run's folder: the output of its process.
const LOG: &str = "run.log";
/// The most bytes of that which are kept.
const LARGEST_LOG: u64 = 16 << 20;
/// The signal with the largest number (signal(7)).
const LAST_SIGNAL: i32 = 64;
const HEADER: [&str; 4] = ["scenario", "result", "time", "folder"];

/// Runs `scenarios` by jobs, as many at a time as `options` ask for.
pub(super) fn run(
    options: &cli::Run,
    scenarios: &[Runnable],
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    if scenarios.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    // Downloads and builds happen once, before several runs ask for them.
    for guest in scenarios.iter().flat_map(Runnable::guests) {
        run::artifacts(options, GuestNeeds::of(guest), signals)?;
    }
    let mut runs = ParallelRuns {
        options,
        scenarios,
        series: Series::default(),
        running: BTreeMap::new(),
        table: Table::new(HEADER).flush_right([2]).at_most(columns()),
        progress: Progress::default(),
    };
    let signal = jobs::run(&mut runs, options.jobs.get(), signals)?;
    let ParallelRuns {
        series,
        table,
        progress,
        ..
    } = runs;
    drop(progress);
    print(&(table.framed() + &series.summary()))?;
    Ok(ExitCode::from(match signal {
        Some(signal) => RunOutcome::Interrupted(signal).code(),
        None => series.code(),
    }))
}

/// The runs as jobs.
struct ParallelRuns<'a> {
    options: &'a cli::Run,
    scenarios: &'a [Runnable],
    series: Series,
    running: BTreeMap<usize, RunningJob<'a>>,
    table: Table,
    progress: Progress,
}

/// A run that has begun.
struct RunningJob<'a> {
    scenario: &'a Runnable,
    folder: Folder,
    /// A file without a name: a guest that may write into the folder does not reach it.
    log: File,
    began: Instant,
}

impl<'a> ParallelRuns<'a> {
    /// Returns the scenario of the job `number`, or `None` if the jobs before it have ended the
    /// series.
    fn scenario(&self, number: usize) -> Option<&'a Runnable> {
        let round = number.checked_div(self.scenarios.len())?;
        let round = u32::try_from(round).unwrap_or(u32::MAX);
        let ends = self.series.ends(self.options.until_fail);
        let index = number.checked_rem(self.scenarios.len())?;
        let scenario = self.scenarios.get(index)?;
        (!ends && wants_more(self.options, round)).then_some(scenario)
    }

    /// Prints the names of the current runs.
    fn tell(&mut self) {
        let names = self.running.values().map(|job| job.scenario.name());
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            self.progress
                .stage(&format!("running: {}", names.join(", ")));
        }
    }
}

impl Jobs for ParallelRuns<'_> {
    fn start(&mut self, number: usize) -> Result<Option<Child>, Failure> {
        let Some(scenario) = self.scenario(number) else {
            return Ok(None);
        };
        let runs = &self.options.runs;
        let folder = runs.begin(scenario.name())?;
        let log = tempfile::tempfile().context("cannot make a file for a run's output")?;
        let words = [
            words(self.options, scenario.path()),
            runs.words_of(&folder).into(),
        ];
        let child = jobs::start(&words.concat(), &log)?;
        let job = RunningJob {
            scenario,
            folder,
            log,
            began: Instant::now(),
        };
        self.running.insert(number, job);
        self.tell();
        Ok(Some(child))
    }

    fn ended(&mut self, number: usize, status: ExitStatus) -> Result<(), Failure> {
        let job = self.running.remove(&number).context("an end of no run")?;
        let name = job.scenario.name();
        let log = job.keep_log()?;
        let result = job.result(status, &log);
        let said = match &result {
            Ok((_, verdict)) => verdict.clone(),
            Err(failure) => format!("not run: {failure}"),
        };
        let seconds = format!("{:.1} s", job.began.elapsed().as_secs_f64());
        let path = job.folder.path().display().to_string();
        self.progress
            .lasting(&format!("{name}: {said} ({seconds}, {path})"));
        let has_not_passed = |(outcome, _): &(RunOutcome, String)| *outcome != RunOutcome::Passed;
        if result.as_ref().is_ok_and(has_not_passed) {
            let way_out = report::way_out_of(job.folder.path());
            let way_out = way_out.inspect_err(|error| log::warn!("{path}: {error:#}"));
            let lines = way_out.unwrap_or_default();
            lines.lines().for_each(|line| self.progress.lasting(line));
        }
        let (word, style) = match &result {
            Ok((RunOutcome::Passed, _)) => ("passed".to_owned(), Style::Green),
            Ok((outcome, _)) => (outcome.to_string(), Style::Red),
            Err(_) => ("not run".to_owned(), Style::Red),
        };
        let style = if colours() { style } else { Style::Plain };
        let word = Cell::styled(word, style);
        self.table.add([
            Cell::from(name),
            word,
            Cell::from(seconds),
            Cell::from(path),
        ]);
        self.series.note(
            name,
            result.map(|(outcome, _)| EndedRun {
                outcome,
                folder: job.folder.path().to_owned(),
            }),
        );
        self.tell();
        Ok(())
    }
}

impl RunningJob<'_> {
    /// Writes the output of the run's process into its folder, and returns it.
    fn keep_log(&self) -> anyhow::Result<String> {
        let mut log = &self.log;
        let mut bytes = Vec::new();
        log.seek(SeekFrom::Start(0))
            .and_then(|_| log.take(LARGEST_LOG).read_to_end(&mut bytes))
            .context("cannot read a run's output")?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.folder.write(LOG, &text)?;
        Ok(text)
    }

    /// Returns the outcome of the run with its verdict. The failure is the reason why it did not
    /// run.
    fn result(&self, status: ExitStatus, log: &str) -> Result<(RunOutcome, String), Failure> {
        let verdict = self.folder.path().join(VERDICT);
        let verdict = run_file::read_to_string(&verdict).unwrap_or_default();
        let verdict = verdict.lines().next().unwrap_or_default();
        match status.code().and_then(outcome) {
            Some(outcome) if is_verdict(verdict, outcome) => Ok((outcome, verdict.to_owned())),
            _ => {
                let last = log.lines().rev().find(|line| !line.trim().is_empty());
                let last = last.unwrap_or("it printed nothing");
                let reason = last.strip_prefix("peerbar: ").unwrap_or(last);
                Err(anyhow!("{reason} ({status})").into())
            }
        }
    }
}

/// Returns `true` if the `verdict` of a run's folder is that of a run that ended with `outcome`.
fn is_verdict(verdict: &str, outcome: RunOutcome) -> bool {
    verdict.starts_with(&format!("{outcome}:"))
}

/// Returns the outcome that has this exit code, or `None`.
fn outcome(code: i32) -> Option<RunOutcome> {
    let of_itself = [
        RunOutcome::Passed,
        RunOutcome::Failed,
        RunOutcome::TimedOut,
        RunOutcome::GuestDied,
    ];
    let signals = (1..=LAST_SIGNAL).map(RunOutcome::Interrupted);
    let mut outcomes = of_itself.into_iter().chain(signals);
    outcomes.find(|outcome| i32::from(outcome.code()) == code)
}

/// Returns the command line of a run of the `scenario` alone.
fn words(options: &cli::Run, scenario: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["run".into()];
    if !options.scenarios.is_empty() {
        words.push(PathBuf::from(scenario).into());
    }
    words.extend(options.verbose.then(|| "--verbose".into()));
    words.extend(options.trace.then(|| "--trace".into()));
    let checks = options.checks.iter();
    words.extend(checks.map(|name| format!("--check={name}").into()));
    let values = [
        (
            "timeout",
            options
                .timeout
                .map(|timeout| format!("{}s", timeout.seconds())),
        ),
        (
            "workers",
            options.workers.map(|workers| workers.to_string()),
        ),
        ("poll", options.poll.map(|policy| policy.to_string())),
    ];
    for (option, value) in values {
        words.extend(value.map(|value| format!("--{option}={value}").into()));
    }
    words.extend(options.own.words());
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn options(words: &[OsString]) -> cli::Run {
        let words = [&["peerbar".into()], words].concat();
        match cli::Cli::parse_from(words).command {
            cli::Command::Run(options) => options,
            _ => panic!("not a run"),
        }
    }

    #[test]
    fn job_has_the_options_of_its_series_and_one_scenario() {
        let line = "run a.toml b.toml --jobs 2 --repeat 3 --until-fail -v --trace --check x --check y --timeout 2m --workers 3 \
                    --poll never --qemu q --kernel k --modules m --append=-a --accel tcg --qemu-arg -d --qemu-arg int";
        let given: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let given = options(&given);
        let job = options(&words(&given, Path::new("b.toml")));
        assert_eq!(job.scenarios, [Path::new("b.toml")]);
        assert_eq!(
            (job.jobs.get(), job.repeat, job.until_fail),
            (1, None, false)
        );
        assert_eq!((job.verbose, job.trace), (given.verbose, given.trace));
        assert_eq!(job.checks, given.checks);
        assert_eq!(job.timeout, given.timeout);
        assert_eq!((job.workers, job.poll), (given.workers, given.poll));
        assert_eq!(format!("{:?}", job.own), format!("{:?}", given.own));
        let demo = options(&words(&options(&["run".into()]), Path::new("demo.toml")));
        assert!(demo.scenarios.is_empty());
    }

    #[test]
    fn exit_code_has_its_outcome_and_a_verdict_must_agree() {
        let codes = [0, 1, 2, 69, 124, 130, 255];
        let outcomes = codes.map(outcome);
        let expected = [
            Some(RunOutcome::Passed),
            Some(RunOutcome::Failed),
            None,
            None,
            Some(RunOutcome::TimedOut),
            Some(RunOutcome::Interrupted(2)),
            Some(RunOutcome::GuestDied),
        ];
        assert_eq!(outcomes, expected);
        assert!(is_verdict(
            "passed: all 2 checks passed",
            RunOutcome::Passed
        ));
        assert!(!is_verdict("failed: x", RunOutcome::Passed));
        assert!(!is_verdict("", RunOutcome::Passed));
        assert!(!is_verdict("not run: no memory", RunOutcome::Failed));
    }
}
