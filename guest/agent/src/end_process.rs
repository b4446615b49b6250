//! An RDMA end in this guest: a program with which the agent exchanges lines.

use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use peerbar_rdma_end::{Answer, Command as Request, End, LineEnd, Result, StartedEnd, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process_group};

/// Bytes of the error output that are kept, the first ones.
const MOST_ERRORS: u64 = 8 << 10;

/// A process that is an end. Dropping the value kills it.
pub(crate) struct EndProcess {
    nic: String,
    lines: LineEnd<BufReader<Timed<ChildStdout>>, ChildStdin>,
    errors: Timed<ChildStderr>,
    process: ProcessGroup,
}

impl EndProcess {
    /// Starts `command` as the end of the adapter `nic`. An answer that has not come at the
    /// `deadline` is an error, for the reason `late`.
    pub(crate) fn start(
        nic: &str,
        mut command: Command,
        deadline: Instant,
        late: &str,
    ) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut process = ProcessGroup(command.spawn().context("cannot start it")?);
        let child = &mut process.0;
        let streams = child.stdin.take().zip(child.stdout.take());
        let streams = streams.zip(child.stderr.take());
        let ((commands, answers), errors) = streams.context("it has no streams")?;
        let answers = BufReader::new(Timed::new(answers, deadline, late));
        Ok(Self {
            nic: nic.to_owned(),
            lines: LineEnd::new(answers, commands),
            errors: Timed::new(errors, deadline, late),
            process,
        })
    }

    /// Waits until it has ended, which the end of its input tells it to do. Returns its exit status
    /// and its error output.
    fn ended(self) -> io::Result<(std::process::ExitStatus, String)> {
        let Self {
            lines,
            errors,
            mut process,
            ..
        } = self;
        drop(lines);
        let mut words = Vec::new();
        errors.take(MOST_ERRORS).read_to_end(&mut words)?;
        let status = process.0.wait()?;
        Ok((status, String::from_utf8_lossy(&words).into_owned()))
    }
}

impl End for EndProcess {
    fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.lines.ask(request)
    }
}

impl StartedEnd for EndProcess {
    fn finish(self: Box<Self>) -> Step<()> {
        let nic = self.nic.clone();
        match self.ended() {
            Ok((status, _)) if status.success() => Ok(()),
            Ok((status, words)) => {
                let words = words.trim().replace('\n', "; ");
                Err(format!("the end of {nic} ended with {status}: {words}"))
            }
            Err(error) => Err(format!("the end of {nic}: {error}")),
        }
    }
}

/// A process and those that it has started, which are killed when the value is dropped.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A group without a process cannot be killed, which is not an error here.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A stream whose reader waits until a deadline.
struct Timed<R> {
    stream: R,
    deadline: Instant,
    /// The error at the deadline.
    late: String,
}

impl<R> Timed<R> {
    fn new(stream: R, deadline: Instant, late: &str) -> Self {
        Self {
            stream,
            deadline,
            late: late.to_owned(),
        }
    }
}

impl<R: Read + AsFd> Read for Timed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut events = [PollFd::new(&self.stream, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut events, Some(&left)))? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, self.late.as_str())),
            _ => self.stream.read(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn start(line: &str, limit: Duration) -> Box<EndProcess> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        Box::new(EndProcess::start("nic0", command, Instant::now() + limit, "it is late").unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn end_answers_and_ends_with_its_input() {
        let mut end = start(r#"while read line; do echo '"done"'; done"#, LONG);
        for _ in 0..2 {
            assert_eq!(end.ask(&Request::Wait).unwrap(), Answer::Done);
        }
        assert_eq!(end.finish(), Ok(()));
    }

    #[test]
    fn end_that_fails_is_reported_with_its_words() {
        let mut end = start("echo one >&2; echo two >&2; exit 3", LONG);
        assert!(end.ask(&Request::Wait).is_err());
        let wanted = "the end of nic0 ended with exit status: 3: one; two";
        assert_eq!(end.finish(), Err(wanted.to_owned()));
    }

    #[test]
    fn silent_end_is_abandoned_at_the_deadline() {
        let mut end = start("sleep 1000", Duration::ZERO);
        let error = end.ask(&Request::Wait).unwrap_err();
        let error = peerbar_rdma_end::in_one_line(&error);
        assert_eq!(error, "cannot talk to an end of the transfer: it is late");
        let wanted = "the end of nic0: it is late".to_owned();
        assert_eq!(end.finish(), Err(wanted));
    }
}
