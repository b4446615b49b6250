//! Jobs: processes of this program, several at a time. A matrix has one for each boot, `peerbar run --jobs` one for each run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use peerbar_lab::child::Child;
use peerbar_lab::events::{Event, EventSource, Events};
use peerbar_lab::exit::Failure;
use peerbar_lab::parent_death;
use peerbar_lab::signals::Signals;

/// Longest time from the request to end to the regular end of a job.
const END: Duration = Duration::from_secs(20);
/// Longest wait for an event. A run has a separate time limit.
const NEWS: Duration = Duration::from_secs(3600);

/// A list of jobs, with a handler for their ends.
pub(crate) trait Jobs {
    /// Starts the job `number`, counted from 0. Returns `None` if there are no more.
    ///
    /// # Errors
    /// A reason to end all jobs.
    fn start(&mut self, number: usize) -> Result<Option<Child>, Failure>;

    /// Handles the end of the job `number`.
    ///
    /// # Errors
    /// A reason to end all jobs.
    fn ended(&mut self, number: usize, status: ExitStatus) -> Result<(), Failure>;
}

/// Executes all `jobs`, `most` at a time. A signal ends those that are running, and is returned.
///
/// # Errors
/// Those of `jobs`, and those of the system.
pub(crate) fn run(
    jobs: &mut impl Jobs,
    most: usize,
    signals: &Signals,
) -> Result<Option<i32>, Failure> {
    let mut events = Events::new(signals);
    let mut running: BTreeMap<usize, Child> = BTreeMap::new();
    let mut next: usize = 0;
    loop {
        while running.len() < most {
            let Some(child) = jobs.start(next)? else {
                break;
            };
            events.add_child(EventSource::Run(next), child.pidfd())?;
            running.insert(next, child);
            next = next.saturating_add(1);
        }
        if running.is_empty() {
            return Ok(None);
        }
        match events.next(Instant::now() + NEWS)? {
            Some(Event::Ended(EventSource::Run(number))) => {
                let mut child = running.remove(&number).context("an end of no job")?;
                let status = child.ended()?.context("a job that ended and did not")?;
                jobs.ended(number, status)?;
            }
            Some(Event::Signal(signal)) => {
                running.values().try_for_each(Child::ask_to_end)?;
                for (number, mut child) in running {
                    jobs.ended(number, child.end(END)?)?;
                }
                return Ok(Some(signal));
            }
            Some(_) | None => {}
        }
    }
}

/// Starts this program with `words`. It dies with this process, and its output goes to `log`.
///
/// # Errors
/// It cannot be started.
pub(crate) fn start(words: &[OsString], log: &File) -> Result<Child, Failure> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(own);
    command.args(words);
    let mut wrapped = parent_death::wrapped(&command)?;
    let log = || log.try_clone().context("cannot share a log");
    wrapped.stdin(Stdio::null()).stdout(log()?).stderr(log()?);
    Ok(Child::spawn(wrapped)?)
}

#[cfg(test)]
mod tests {
    use peerbar_lab::signals;

    use super::*;

    /// Jobs of the shell.
    struct Shells {
        lines: Vec<&'static str>,
        running: usize,
        most: usize,
        ended: BTreeMap<usize, Option<i32>>,
    }

    impl Jobs for Shells {
        fn start(&mut self, number: usize) -> Result<Option<Child>, Failure> {
            let Some(line) = self.lines.get(number) else {
                return Ok(None);
            };
            self.running += 1;
            self.most = self.most.max(self.running);
            let mut shell = Command::new("sh");
            shell.args(["-c", line]);
            Ok(Some(Child::spawn(shell)?))
        }

        fn ended(&mut self, number: usize, status: ExitStatus) -> Result<(), Failure> {
            self.running -= 1;
            self.ended.insert(number, status.code());
            Ok(())
        }
    }

    #[test]
    fn all_jobs_are_done_and_not_more_than_asked_at_a_time() {
        let mut shells = Shells {
            lines: vec!["exit 0", "exit 1", "exit 2", "exit 3", "exit 4"],
            running: 0,
            most: 0,
            ended: BTreeMap::new(),
        };
        assert_eq!(run(&mut shells, 2, &signals::NONE).unwrap(), None);
        assert_eq!((shells.running, shells.most), (0, 2));
        let codes: Vec<_> = shells.ended.into_values().collect();
        assert_eq!(codes, [0, 1, 2, 3, 4].map(Some));
    }
}
