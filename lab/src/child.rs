//! A child process that is always reaped.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child as StdChild, ChildStderr, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::run_file;
use crate::terminal::printable;

/// Bytes at the end of a log that are searched for its last line.
const LONGEST_END: u64 = 64 << 10;

/// A running or ended child. Dropped, it is killed and reaped.
pub struct Child {
    child: StdChild,
    pidfd: OwnedFd,
}

impl Child {
    /// Starts `command`.
    pub fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_owned();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", Path::new(&program).display()))?;
        match open(&child) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                child
                    .kill()
                    .and_then(|()| child.wait())
                    .context("cannot end a child")?;
                Err(error)
            }
        }
    }

    /// Returns its standard output, if that is a pipe; only the first call succeeds.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns its standard error, if that is a pipe; only the first call succeeds.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Returns its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Becomes readable when the child ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns its status, or `None` if it still runs.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot query a child")
    }

    /// Asks it to end, and does not wait for that. A child that has already ended is no error.
    pub fn ask_to_end(&self) -> anyhow::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(anyhow!(error).context("cannot end a child")),
        }
    }

    /// Asks it to end, and kills it if it has not within `grace`.
    pub fn end(&mut self, grace: Duration) -> anyhow::Result<ExitStatus> {
        if self.ended()?.is_none() {
            self.ask_to_end()?;
        }
        if !self.ends_within(grace)? {
            self.child.kill().context("cannot kill a child")?;
        }
        self.child.wait().context("cannot reap a child")
    }

    /// Kills it, if it has not ended.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill a child")
    }

    /// Returns an object that can kill it from any thread.
    pub(crate) fn killer(&self) -> anyhow::Result<Killer> {
        let pidfd = self.pidfd.try_clone();
        Ok(Killer(pidfd.context("cannot share a child")?))
    }

    /// Returns `true` if it has ended, or does within `grace`. A signal to this process cuts the
    /// wait short.
    fn ends_within(&self, grace: Duration) -> anyhow::Result<bool> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec::try_from(grace).context("the grace is too long")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(anyhow!(error).context("cannot wait for a child")),
        }
    }
}

/// Kills a child.
#[derive(Debug)]
pub(crate) struct Killer(OwnedFd);

impl Killer {
    /// Kills it. One that has ended by itself is an error.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, Signal::KILL)?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A child that has been reaped is not signalled again by the standard library.
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            log::warn!("cannot end the child {}", self.child.id());
        }
    }
}

/// Returns the last line of the log file of a child, for a message of one line. The log may be
/// longer than the memory. QEMU's warnings, such as those about CPUID bits that TCG lacks, are
/// skipped, because they are not the reason for its end.
pub fn last_line(log: &Path) -> String {
    let text = end_of(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let is_reason = |line: &&str| !line.trim().is_empty() && !line.contains(": warning: ");
    let last = text.lines().rev().find(is_reason);
    last.map_or_else(
        || "without a message".to_owned(),
        |line| printable(line.as_bytes()),
    )
}

/// Returns the last bytes of a file.
fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = run_file::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST_END)))?;
    let mut text = Vec::new();
    file.take(LONGEST_END).read_to_end(&mut text)?;
    Ok(text)
}

fn open(child: &StdChild) -> anyhow::Result<OwnedFd> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a child without a pid")?;
    pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a child (pidfd_open)")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Stdio;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Child::spawn(command).unwrap()
    }

    fn is_gone(pid: u32) -> bool {
        !Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn killer_kills_from_another_thread_and_once() {
        let mut child = shell("exec sleep 1000");
        let killer = child.killer().unwrap();
        std::thread::spawn(move || {
            killer.kill().unwrap();
            killer
        })
        .join()
        .map(|killer| {
            assert!(child.ends_within(LONG).unwrap());
            assert!(!child.ended().unwrap().unwrap().success());
            assert!(killer.kill().is_err(), "it has been reaped");
        })
        .unwrap();
    }

    #[test]
    fn child_that_heeds_sigterm_ends_at_once() {
        let mut child = shell("exec sleep 60");
        let begun = Instant::now();
        let status = child.end(LONG).unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(15)
        );
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn child_that_ignores_sigterm_is_killed() {
        let mut child = shell("trap '' TERM; echo up; exec sleep 60");
        let mut stdout = child.take_stdout().unwrap();
        std::io::Read::read_exact(&mut stdout, &mut [0; 3]).unwrap();
        let status = child.end(Duration::from_millis(50)).unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }

    #[test]
    fn a_dropped_child_is_reaped() {
        let child = shell("exec sleep 60");
        let pid = child.child.id();
        assert!(!is_gone(pid));
        drop(child);
        assert!(is_gone(pid));
    }

    #[test]
    fn last_line_is_neither_blank_nor_a_warning() {
        let log = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(last_line(log.path()), "without a message");
        let warning = "qemu-system-x86_64: warning: TCG doesn't support requested feature: CPUID.07H:EBX.pcommit\n";
        std::fs::write(log.path(), warning).unwrap();
        assert_eq!(last_line(log.path()), "without a message");
        std::fs::write(log.path(), format!("first\nlast\n\n{warning}")).unwrap();
        assert_eq!(last_line(log.path()), "last");
        log.as_file().set_len(1 << 40).unwrap();
        let end = File::options().append(true).open(log.path());
        io::Write::write_all(&mut end.unwrap(), b"\nof many\n").unwrap();
        assert_eq!(last_line(log.path()), "of many");
    }
}
