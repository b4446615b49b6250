//! A guest to work in: one that is booted for it, or one that runs already.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use peerbar_lab::artifacts::Own;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::progress::Progress;
use peerbar_lab::runs::Runs;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::{printable, say};
use peerbar_lab::{FinishedLab, LabError, LabOptions};
use peerbar_report::exec::HOST_FOLDER;

use crate::attached::in_running_guest;
use crate::completion;
use crate::guest_folder::GuestName;
use crate::results::show_console;

/// Lines of the console that are shown of a guest that has failed.
const CONSOLE_LINES: usize = 30;

/// The exit status of a program that signal N ends is this number and N, as a shell counts.
const SIGNALLED: i32 = 128;

/// A guest to work in.
#[derive(Args)]
pub(crate) struct InGuest {
    /// Scenario with the guest's devices; its checks are not run [default: the built-in demo].
    #[arg(add = completion::scenarios())]
    pub scenario: Option<PathBuf>,
    /// Use the guest of this run, which must be running [default: runs/latest].
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "runs/latest", conflicts_with_all = ["scenario", "share_rw"])]
    pub attach: Option<PathBuf>,
    /// The guest of that run or scenario.
    #[command(flatten)]
    pub name: GuestName,
    /// Let the guest write to /host, the current folder, with your rights. Its root can create
    /// setuid files and device nodes.
    #[arg(long)]
    pub share_rw: bool,
    /// The folder of the run.
    #[command(flatten)]
    pub runs: Runs,
    /// The user's own QEMU, kernel and the like.
    #[command(flatten)]
    pub own: Own,
}

/// Does `work` in a guest. It gets the guest's socket, the path of the current folder in the guest,
/// and the numbers of signals as bytes. The status that it returns is the exit code. The guest's
/// scenario must pass `check` first, before a boot.
///
/// # Errors
/// The reason why the guest does not run, or why `work` is impossible.
pub(crate) fn in_guest(
    options: &InGuest,
    access: GuestAccess,
    check: impl FnOnce(&Scenario) -> Result<(), Failure>,
    work: impl FnOnce(&Path, &str, UnixStream) -> Result<i32, Failure> + Send,
) -> Result<ExitCode, Failure> {
    let status = match &options.attach {
        Some(run) => in_running_guest(&options.name.folder(run)?, check, work)?,
        None => in_new_guest(options, access, check, work)?,
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

fn in_new_guest(
    options: &InGuest,
    access: GuestAccess,
    check: impl FnOnce(&Scenario) -> Result<(), Failure>,
    work: impl FnOnce(&Path, &str, UnixStream) -> Result<i32, Failure> + Send,
) -> Result<i32, Failure> {
    let mut scenario = match &options.scenario {
        Some(path) => options.name.scenario(path, Scenario::load_interactive)?,
        None => Scenario::demo()?,
    };
    check(&scenario)?;
    scenario.checks.clear();
    scenario.labels.clear();
    // One for the whole life of the process.
    let signals: &'static Signals = Box::leak(Box::new(Signals::new()?));
    let mut progress = Progress::default();
    progress.stage(&format!("{}: booting its guest", scenario.name));
    let lab = LabOptions::default()
        .own(options.own.or_kernel_tree_here()?)
        .runs_as(options.runs.clone())
        .access(access)
        .signals(signals)
        .start(scenario);
    let mut lab = lab.map_err(|error| {
        if let LabError::GuestEnded {
            console, folder, ..
        } = &error
        {
            show_console(console, folder);
        }
        Failure::from(error)
    })?;
    progress.stage(&format!(
        "the guest is ready; its run is in {}",
        lab.folder().display()
    ));
    drop(progress);
    let done = lab.run_beside(|socket, signals| work(socket, HOST_FOLDER, signals));
    let done = done.map_err(Failure::from).and_then(|done| done);
    let flaw = flaw(&done);
    let finished = lab.shut_down_after(flaw.clone()).map_err(Failure::from);
    // The exit code describes the end of the work, and nothing else is wrong here.
    let is_clean =
        |ended: &FinishedLab| ended.is_passed() || Some(&ended.verdict.reason) == flaw.as_ref();
    // Work that failed has often lost the guest, and the end of that is the reason.
    let status = done.inspect_err(|error| {
        let error = error.to_string();
        let unclean = finished.iter().filter(|ended| !is_clean(ended));
        unclean.for_each(|ended| show_end(ended, &error));
    })?;
    let finished = finished?;
    if !is_clean(&finished) {
        say(format_args!("peerbar: {}", finished.verdict));
    }
    Ok(status)
}

/// Returns the reason why a run does not pass after the work in its guest, or `None` if that
/// succeeded.
fn flaw(done: &Result<i32, Failure>) -> Option<String> {
    match done {
        Ok(0) => None,
        Ok(status) => match status.checked_sub(SIGNALLED).filter(|signal| *signal > 0) {
            Some(signal) => Some(format!(
                "the program ended with exit status {status}, that of signal {signal}"
            )),
            None => Some(format!("the program ended with exit status {status}")),
        },
        Err(failure) => Some(format!("the program did not run to its end: {failure}")),
    }
}

/// Shows the end of a guest that has failed. A reason that equals the `error`, which follows, is
/// not printed twice.
fn show_end(finished: &FinishedLab, error: &str) {
    let lines = finished.console.lines();
    let mut tail: Vec<_> = lines.rev().take(CONSOLE_LINES).collect();
    tail.reverse();
    let tail = tail.into_iter().map(|line| printable(line.as_bytes()));
    show_console(&tail.collect::<Vec<_>>(), &finished.folder);
    if finished.verdict.reason == error {
        return;
    }
    say(format_args!("peerbar: {}", finished.verdict));
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn only_a_program_that_succeeds_lets_its_run_pass() {
        assert_eq!(flaw(&Ok(0)), None);
        let cases = [
            (Ok(1), "the program ended with exit status 1"),
            (Ok(128), "the program ended with exit status 128"),
            (
                Ok(143),
                "the program ended with exit status 143, that of signal 15",
            ),
            (
                Err(Failure::from(anyhow!("the guest is gone"))),
                "the program did not run to its end: the guest is gone",
            ),
        ];
        for (done, reason) in cases {
            assert_eq!(flaw(&done).as_deref(), Some(reason));
        }
    }
}
