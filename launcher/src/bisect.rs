//! `peerbar bisect`: the commit that broke a scenario.
//!
//! `git bisect` works in a worktree of the user's repository that is made for it and has no files: each commit's kernel is
//! built from the repository itself. Its references are of that worktree alone, and go with it.

mod worktree;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, anyhow};
use peerbar_images::{Cache, KernelSource, KernelTree};
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::LATEST;
use peerbar_lab::run_file;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::{print, say};

use self::worktree::{Worktree, output};
use crate::cli;
use crate::kernel;
use crate::runnable::Runnable;

/// Exit code by which git-bisect-run(1) skips a commit.
const SKIP: u8 = 125;
/// Exit code that ends the search.
const ABORT: u8 = 128;

/// Implements `peerbar bisect`.
pub(crate) fn bisect(options: &cli::Bisect) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let step = options.step()?;
    if let Some(scenario) = &step.scenario {
        Runnable::load(scenario)?;
    }
    let is_tree = KernelTree::around(&step.tree).is_some_and(|found| found.path() == step.tree);
    if !is_tree && step.builder.is_none() {
        return Err(Failure::Usage(anyhow!(
            "{} is not a kernel tree: name its top folder with --tree",
            step.tree.display()
        )));
    }
    let worktree = Worktree::add(&step.tree)?;
    worktree.start(&options.good, &options.bad)?;
    let status = worktree.search(&step.words()?)?;
    if let Some(signal) = signals.pending()? {
        return Err(Failure::Interrupted(signal));
    }
    match worktree.first_bad() {
        Some(commit) if status.success() => {
            let shown = worktree.git(&["show", "--no-patch", "--format=medium", &commit])?;
            print(&format!("the first bad commit is\n{shown}"))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(anyhow!(
            "no commit found, git bisect ended with {status}: see its output above, and try an end of the range with \
             `peerbar kernel build --tree {} --commit {}`",
            step.tree.display(),
            options.good
        )
        .into()),
    }
}

impl cli::Bisect {
    /// Returns the options for the step of each commit, with paths that are valid in any folder.
    fn step(&self) -> anyhow::Result<cli::BisectStep> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .with_context(|| format!("cannot tell where {} is", path.display()))
        };
        let mut step = self.step.clone();
        step.tree = absolute(&step.tree)?;
        step.runs = absolute(&step.runs)?;
        step.scenario = step.scenario.as_deref().map(absolute).transpose()?;
        step.builder = step.builder.as_deref().map(absolute).transpose()?;
        let fragments = step.configuration.fragments.iter();
        let fragments: anyhow::Result<_> = fragments.map(|path| absolute(path)).collect();
        step.configuration.fragments = fragments?;
        Ok(step)
    }
}

impl cli::BisectStep {
    /// Returns the command line of that step.
    fn words(&self) -> anyhow::Result<Vec<OsString>> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut words = vec![program.into(), "bisect-step".into()];
        let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
        option("--tree", self.tree.clone().into());
        option("--runs", self.runs.clone().into());
        if let Some(builder) = &self.builder {
            option("--builder", builder.clone().into());
        }
        if let Some(jobs) = self.configuration.jobs {
            option("--jobs", jobs.to_string().into());
        }
        for fragment in &self.configuration.fragments {
            option("--fragment", fragment.clone().into());
        }
        words.extend(self.configuration.debug.then(|| "--debug".into()));
        words.extend(
            self.scenario
                .iter()
                .flat_map(|path| ["--".into(), path.clone().into()]),
        );
        Ok(words)
    }
}

/// Judges the commit at hand: builds it, runs the scenario, and tells git bisect.
pub(crate) fn step(options: &cli::BisectStep) -> ExitCode {
    let code = judged(options).unwrap_or_else(|failure| match failure {
        Failure::Interrupted(_) => ABORT,
        _ => {
            say(format_args!("peerbar: this commit is skipped: {failure}"));
            SKIP
        }
    });
    ExitCode::from(code)
}

fn judged(options: &cli::BisectStep) -> Result<u8, Failure> {
    let mut head = Command::new("git");
    let commit = output(head.args(["rev-parse", "--verify", "BISECT_HEAD"]))?;
    let commit = commit.trim_end();
    let kernel = match &options.builder {
        Some(program) => output(Command::new(program).arg(commit))?.trim_end().into(),
        None => {
            let source = KernelSource::Tree {
                path: options.tree.clone(),
                commit: Some(commit.to_owned()),
            };
            kernel::built(&Cache::open()?, source, &options.configuration)?
        }
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut run = Command::new(program);
    run.arg("run").args(&options.scenario);
    run.arg("--kernel").arg(&kernel);
    run.arg("--runs").arg(&options.runs).stdin(Stdio::null());
    let status = run.status().context("cannot start the run")?;
    Ok(verdict(status, &options.runs.join(LATEST)))
}

/// Returns the exit code for git after a run. A guest that ended before any check did not boot.
fn verdict(status: ExitStatus, run: &Path) -> u8 {
    let has_checked = || {
        let report = run_file::read_to_string(&run.join("report.ktap")).unwrap_or_default();
        let is_result = |line: &str| line.starts_with("ok ") || line.starts_with("not ok ");
        report.lines().any(is_result)
    };
    match status.code() {
        Some(0) => 0,
        Some(1) => 1,
        Some(124 | 255) if has_checked() => 1,
        // By a signal, the user's most likely.
        None | Some(129..=254) => ABORT,
        Some(_) => SKIP,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn run_that_never_checked_anything_is_skipped() {
        let run = tempfile::tempdir().unwrap();
        let verdict = |code: i32| verdict(ExitStatus::from_raw(code << 8), run.path());
        assert_eq!(
            [0, 1, 2, 69, 124, 255, 130].map(verdict),
            [0, 1, SKIP, SKIP, SKIP, SKIP, ABORT]
        );
        std::fs::write(run.path().join("report.ktap"), "KTAP version 1\nok 1 a\n").unwrap();
        assert_eq!([124, 255].map(verdict), [1, 1]);
        assert_eq!(super::verdict(ExitStatus::from_raw(2), run.path()), ABORT);
    }
}
