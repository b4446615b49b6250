//! A command with a time limit, whose output goes to a file.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::diagnosis;
use crate::outcome::Outcome;

/// Time limit for a command to end its processes, once it was asked to.
const GRACE: Duration = Duration::from_secs(30);

/// A command that has ended by itself or was ended.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// Processor time of the command and all processes that it waited for.
    pub(crate) processor: Duration,
}

/// Runs `command` until it ends or `deadline` passes. Its output, and after a time-out a diagnosis,
/// is appended to `log`. `logs` is the folder whose logs the diagnosis quotes.
///
/// # Errors
/// A command that cannot be started or watched.
pub(crate) fn run(
    mut command: Command,
    deadline: Instant,
    limit: Duration,
    mut log: File,
    logs: Option<&Path>,
) -> anyhow::Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    if ends(&child, deadline.saturating_duration_since(Instant::now()))? {
        let (status, processor) = wait(&mut child)?;
        let outcome = match status.code() {
            Some(0) => Outcome::Passed,
            _ => Outcome::Failed(described(status)),
        };
        return Ok(Ended { outcome, processor });
    }
    log.write_all(diagnosis::of(child.id(), logs).as_bytes())?;
    let started = diagnosis::descendants(child.id());
    kill(child.id(), Signal::TERM);
    if !ends(&child, GRACE)? {
        kill(child.id(), Signal::KILL);
    }
    // A command ends the processes that it starts, so any that is left over is a mistake.
    for process in started {
        kill(process, Signal::KILL);
    }
    let (_, processor) = wait(&mut child)?;
    Ok(Ended {
        outcome: Outcome::TimedOut(limit),
        processor,
    })
}

/// Returns `true` if the child ends within `time`.
fn ends(child: &Child, time: Duration) -> anyhow::Result<bool> {
    let process = pidfd_open(pid(child.id())?, PidfdFlags::empty())?;
    let time = Timespec::try_from(time)?;
    let mut descriptors = [PollFd::new(&process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut descriptors, Some(&time)))? == 1)
}

/// Returns the status of a child that has ended, and its processor time.
fn wait(child: &mut Child) -> anyhow::Result<(ExitStatus, Duration)> {
    // Waiting adds the time to the sum of all children, which run at the same time. Before that it
    // is the child's alone.
    let processor = diagnosis::processor_time(child.id());
    let status = child.wait()?;
    Ok((status, processor))
}

fn kill(process: u32, signal: Signal) {
    if let Ok(process) = pid(process) {
        // A process that has ended already needs no signal.
        let _ = kill_process(process, signal);
    }
}

fn pid(process: u32) -> anyhow::Result<Pid> {
    let process = i32::try_from(process)?;
    Pid::from_raw(process).context("a process has the number 0")
}

fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
