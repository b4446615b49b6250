//! A daemon as a process, which dies with the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_lab::child::Child;
use peerbar_lab::parent_death;
use peerbar_lab::programs::program;
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a server's end.
const END: Duration = Duration::from_secs(10);

/// A server at a socket.
pub(crate) struct Server {
    command: Command,
    pub(crate) socket: PathBuf,
    log: PathBuf,
    child: Child,
}

/// The resources of a process (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    pub(crate) anonymous_bytes: u64,
}

impl Server {
    /// Starts the program with `words`. Its socket and its log are `name` in `folder`.
    pub(crate) fn start(
        folder: &Path,
        name: &str,
        program_name: &str,
        words: &[&str],
    ) -> anyhow::Result<Self> {
        let socket = folder.join(format!("{name}.sock"));
        let log = folder.join(format!("{name}.log"));
        let mut command = Command::new(program(program_name)?);
        command.arg("--socket-path").arg(&socket).args(words);
        let child = spawn(&command, &log)?;
        Ok(Self {
            command,
            socket,
            log,
            child,
        })
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid()?, signal).context("cannot signal a server")
    }

    /// Kills it without warning.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        ensure!(
            self.child.ended()?.is_none(),
            "it has ended: {}",
            self.said()
        );
        self.child.kill()?;
        self.child.end(END).map(drop)
    }

    /// Restarts it, at the socket that the killed one has left.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.command, &self.log)?;
        Ok(())
    }

    /// Checks that it has not ended.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let ended = self.child.ended()?;
        let socket = self.socket.display();
        ensure!(
            ended.is_none(),
            "{socket} ended ({ended:?}): {}",
            self.said()
        );
        Ok(())
    }

    /// Asks it to end, which must succeed and leave no socket.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let status = self.child.end(END)?;
        ensure!(status.success(), "{status}: {}", self.said());
        ensure!(!self.socket.exists(), "{} is left", self.socket.display());
        Ok(())
    }

    /// Returns its resources.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let entries = |folder| anyhow::Ok(fs::read_dir(process.join(folder))?.count());
        // Not its files: filled pages of a flight record count there.
        let status = fs::read_to_string(process.join("status"))?;
        let mut lines = status.lines();
        let anonymous = lines.find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|text| text.trim().strip_suffix(" kB"));
        let kib: u64 = kib.context("no RssAnon")?.parse()?;
        Ok(Usage {
            descriptors: entries("fd")?,
            threads: threads(&process.join("task"))?,
            mappings: fs::read_to_string(process.join("maps"))?.lines().count(),
            anonymous_bytes: kib * 1024,
        })
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn pid(&self) -> anyhow::Result<Pid> {
        Pid::from_raw(self.child.id().try_into()?).context("no process")
    }
}

/// Returns the number of the process's own threads. The kernel adds and ends others for requests of
/// io_uring that would block (iou-wrk-*).
fn threads(tasks: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for task in fs::read_dir(tasks)? {
        // A thread that has just ended has no name.
        let name = fs::read_to_string(task?.path().join("comm"));
        count += usize::from(name.is_ok_and(|name| !name.starts_with("iou-wrk")));
    }
    Ok(count)
}

/// Starts a server and waits until it is ready.
fn spawn(command: &Command, log: &Path) -> anyhow::Result<Child> {
    let mut wrapped = parent_death::confined(command)?;
    let stderr = File::options().create(true).append(true).open(log)?;
    wrapped
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let mut child = Child::spawn(wrapped)?;
    let mut line = String::new();
    let stdout = child.take_stdout().context("no standard output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let said = || fs::read_to_string(log).unwrap_or_default();
    ensure!(line == "ready\n", "it does not start: {}", said());
    Ok(child)
}
