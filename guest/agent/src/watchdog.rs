//! Runs a check so that a hang ends in a report.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A check may end itself at its limit, with a better message than the watchdog's.
const GRACE: Duration = Duration::from_secs(5);

/// The end of some work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended<T> {
    /// By itself.
    Done(T),
    /// With a panic and its message.
    Panicked(String),
    /// Not at all: its thread is left behind.
    Hung {
        /// Its time limit.
        limit: Duration,
        /// The tasks that were blocked, with their kernel stacks.
        tasks: String,
    },
}

/// Runs `work` in a separate thread for at most `limit` plus a grace time.
pub(crate) fn run<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Ended<T> {
    let (done, outcome) = mpsc::channel();
    let worker = thread::spawn(move || {
        // The receiver is gone once the limit is over.
        let _ = done.send(work());
    });
    match outcome.recv_timeout(limit.saturating_add(GRACE)) {
        Ok(value) => Ended::Done(value),
        Err(RecvTimeoutError::Disconnected) => {
            let panic = worker.join().err();
            let text = panic.as_ref().and_then(|panic| {
                panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or(panic.downcast_ref::<&str>().copied())
            });
            Ended::Panicked(text.unwrap_or("no message").to_owned())
        }
        Err(RecvTimeoutError::Timeout) => Ended::Hung {
            limit,
            tasks: blocked_tasks(Path::new("/proc")),
        },
    }
}

/// Returns the message about work that took longer than its `limit`, which came from a check with
/// this `timeout` in seconds, if it has one.
pub(crate) fn too_slow(limit: Duration, timeout: Option<u32>) -> String {
    let remedy = match timeout {
        Some(_) => "a longer `timeout`",
        None => {
            "a `timeout`, or scale all that have none by `peerbar run --timeout`; without both it is half of the scenario's, at most 60 s"
        }
    };
    format!(
        "did not end within {} s: give the check {remedy}",
        limit.as_secs()
    )
}

/// Returns the same for a command that a lab has requested, which has no `timeout`.
pub(crate) fn too_slow_request(limit: Duration) -> String {
    format!(
        "did not end within {} s, half of the scenario's `timeout`, at most 60 s: raise that, or run it with `check_table`, with `kind = \"command\"` and a `timeout`",
        limit.as_secs()
    )
}

/// Makes the kernel print the blocked tasks on the console.
pub(crate) fn show_blocked_tasks() -> io::Result<()> {
    fs::write("/proc/sysrq-trigger", "w")
}

/// Returns every task in uninterruptible sleep, and every thread of the agent except the first,
/// which asks, with its kernel stack.
fn blocked_tasks(proc: &Path) -> String {
    let mut text = String::new();
    for process in numbered(proc) {
        for task in numbered(&process.join("task")) {
            let status = fs::read_to_string(task.join("status")).unwrap_or_default();
            let of_the_agent = process.ends_with("1") && !task.ends_with("1");
            if of_the_agent || field(&status, "State:").starts_with('D') {
                text.push_str(&describe(&task, &status));
            }
        }
    }
    text
}

/// Returns a task's number, name, state and kernel stack.
fn describe(task: &Path, status: &str) -> String {
    let id = task.file_name().unwrap_or_default().to_string_lossy();
    let (name, state) = (field(status, "Name:"), field(status, "State:"));
    let stack =
        fs::read_to_string(task.join("stack")).unwrap_or_else(|error| format!("no stack: {error}"));
    format!("{id} {name} {state}\n{stack}\n")
}

/// Returns the entries of a directory whose names are numbers.
fn numbered(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_number = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(is_number)
        .collect();
    paths.sort();
    paths
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default()
        .trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_with_its_value_or_its_panic() {
        let limit = Duration::from_secs(60);
        assert_eq!(run(limit, || 5), Ended::Done(5));
        assert_eq!(
            run(limit, || -> u8 { panic!("at {}", 5) }),
            Ended::Panicked("at 5".into())
        );
    }

    #[test]
    fn only_blocked_tasks_and_the_agents_own_are_shown() {
        let proc = tempfile::tempdir().unwrap();
        for (process, task, name, state) in [
            ("1", "1", "asks", "S"),
            ("1", "5", "checks", "S"),
            ("7", "7", "idle", "S"),
            ("8", "8", "stuck", "D"),
        ] {
            let task = proc.path().join(process).join("task").join(task);
            fs::create_dir_all(&task).unwrap();
            fs::write(
                task.join("status"),
                format!("Name:\t{name}\nState:\t{state} (x)\n"),
            )
            .unwrap();
            fs::write(task.join("stack"), "[<0>] io_schedule+0x46/0x80\n").unwrap();
        }
        let text = blocked_tasks(proc.path());
        let stack = "[<0>] io_schedule+0x46/0x80\n";
        assert_eq!(
            text,
            format!("5 checks S (x)\n{stack}\n8 stuck D (x)\n{stack}\n")
        );
    }
}
