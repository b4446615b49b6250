//! The tools root, and commands that run inside it.

#![expect(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use peerbar_report::ProgramReport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::modules::Modules;
use crate::{program_socket, root};

/// The environment of programs in it.
pub(crate) const ENVIRONMENT: [(&str, &str); 4] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    // For udevadm, which assumes that a chroot shares its devices with a surrounding system.
    ("SYSTEMD_IGNORE_CHROOT", "1"),
];

/// Bytes of a command's output that are kept.
pub(crate) const OUTPUT_LIMIT: usize = 256 << 10;

/// Bytes at the end of a line that are searched for the start of a report if the line is not kept.
const SEARCHED_LINE: usize = 4 << 10;

/// Bytes of the output that are read at a time, and the capacity of a pipe (pipe(7)).
const CHUNK: usize = 64 << 10;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its status, or the signal of a shell that was killed at the limit.
    pub(crate) status: ExitStatus,
    /// `true` if it was killed at its time limit.
    pub(crate) timed_out: bool,
    /// The start of its output to either stream, and a note about the length of the rest.
    pub(crate) output: String,
    /// `true` if `output` is complete.
    pub(crate) is_whole: bool,
    /// `true` if a TAP or KTAP report begins in the output that is not kept.
    pub(crate) has_late_report: bool,
}

/// A program in the tools root, and its parameters.
#[derive(Debug)]
pub(crate) struct ToolCommand {
    /// Its path.
    pub(crate) program: String,
    /// Its working directory.
    pub(crate) folder: String,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// Variables in addition to those that every program has.
    pub(crate) environment: Vec<(String, String)>,
    /// Its end of a socket to the agent, if it has one.
    pub(crate) socket: Option<OwnedFd>,
}

/// The tools root, mounted, with the guest's own `/proc`, `/sys` and `/dev` inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tools(());

impl Tools {
    /// Mounts it, under `layers`.
    pub(crate) fn mount(modules: &Modules, layers: &[String]) -> anyhow::Result<Self> {
        root::mount_root(modules, layers)?;
        Ok(Self(()))
    }

    /// Runs `line` in its shell, for at most `limit`. `show` gets each line that it prints.
    pub(crate) fn run(
        self,
        line: &str,
        limit: Duration,
        show: impl Fn(&str) + Send,
    ) -> anyhow::Result<Ran> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).env_clear().envs(ENVIRONMENT);
        // SAFETY: between fork and exec this makes two system calls and touches only constants.
        unsafe { command.pre_exec(|| enter_root(c"/")) };
        capture(command, limit, show)
    }

    /// Runs a program there, for at most `limit`. `show` gets each line that it prints.
    pub(crate) fn run_program(
        self,
        tool: &ToolCommand,
        limit: Duration,
        show: impl Fn(&str) + Send,
    ) -> anyhow::Result<Ran> {
        capture(self.command(tool)?, limit, show)
    }

    /// Returns the command that starts a program there.
    pub(crate) fn command(self, tool: &ToolCommand) -> anyhow::Result<Command> {
        let folder = CString::new(tool.folder.as_str()).context("a folder's path with a NUL")?;
        let mut command = Command::new(&tool.program);
        command.args(&tool.arguments).env_clear().envs(ENVIRONMENT);
        let own = tool.environment.iter();
        command.envs(own.map(|(name, value)| (name, value)));
        let socket = tool.socket.as_ref().map(OwnedFd::try_clone).transpose()?;
        if let Some(socket) = &socket {
            command.env(program_socket::VARIABLE, socket.as_raw_fd().to_string());
        }
        let enter = move || {
            if let Some(socket) = &socket {
                fcntl_setfd(socket, FdFlags::empty())?;
            }
            enter_root(&folder)
        };
        // SAFETY: between fork and exec this makes three system calls and touches only constants
        // and memory that the closure owns.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }
}

pub(crate) fn enter_root(folder: &CStr) -> io::Result<()> {
    rustix::process::chroot(root::ROOT)?;
    Ok(rustix::process::chdir(folder)?)
}

/// Runs `command` in a separate process group, of which no process is left afterwards. A process
/// that has left the group, such as a daemon, may continue and keep the streams.
fn capture(command: Command, limit: Duration, show: impl Fn(&str) + Send) -> anyhow::Result<Ran> {
    capture_until(command, |child| wait_for_exit(child, limit), show)
}

/// Returns the same. `wait_for_exit` returns `true` if the program ended in time.
fn capture_until(
    mut command: Command,
    wait_for_exit: impl FnOnce(&Child) -> anyhow::Result<bool>,
    show: impl Fn(&str) + Send,
) -> anyhow::Result<Ran> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).context("cannot create a pipe");
    let (reader, writer) = pipe()?;
    ioctl_fionbio(&reader, true).context("cannot change a pipe")?;
    let (ended, end) = pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    // It holds the pipe's end for writing, which must close for the reader to end.
    drop(command);
    thread::scope(|scope| {
        let output = scope.spawn(move || {
            let mut output = Output::default();
            let collected = output.collect(File::from(reader), &ended, show);
            let has_late_report = output.has_late_report();
            let (text, is_whole) = output.kept(collected);
            (text, is_whole, has_late_report)
        });
        let in_time = wait_for_exit(&child);
        // ESRCH only means that no process of the group is left.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let status = child.wait().context("cannot wait for the shell")?;
        drop(end);
        let (output, is_whole, has_late_report) = output
            .join()
            .unwrap_or_else(|_| ("the output could not be read".to_owned(), false, false));
        Ok(Ran {
            status,
            timed_out: !in_time?,
            output,
            is_whole,
            has_late_report,
        })
    })
}

/// The output of a program.
#[derive(Debug, Default)]
struct Output {
    /// The start of it.
    kept: Vec<u8>,
    /// Start of the line that has not been shown yet.
    line: usize,
    /// Number of bytes after `kept`.
    dropped: usize,
    /// The line whose end has not been dropped yet, with its part in `kept`.
    dropped_line: Vec<u8>,
    /// `true` if a report begins in a line whose end has been dropped.
    has_late_report: bool,
}

impl Output {
    /// Reads `pipe` until its end, or until `ended` has closed and all earlier output is read.
    /// Shows the kept output line by line.
    fn collect(&mut self, mut pipe: File, ended: &OwnedFd, show: impl Fn(&str)) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        // A pipe holds this much when the program ends. Other processes may continue to write.
        let mut left = None;
        while left != Some(0) {
            let mut events = [
                PollFd::new(&pipe, PollFlags::IN),
                PollFd::new(ended, PollFlags::IN),
            ];
            if left.is_none() {
                poll(&mut events, None)?;
                let [_, end] = events;
                left = (!end.revents().is_empty()).then_some(CHUNK);
            }
            let most = left.unwrap_or(CHUNK).min(CHUNK);
            match pipe.read(chunk.get_mut(..most).unwrap_or_default()) {
                Ok(0) => {
                    self.show_line(self.kept.len(), &show);
                    return Ok(());
                }
                Ok(count) => {
                    self.take(chunk.get(..count).unwrap_or_default(), &show);
                    left = left.map(|left| left.saturating_sub(count));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && left.is_some() => break,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        self.show_line(self.kept.len(), &show);
        read_on(pipe)
    }

    fn take(&mut self, bytes: &[u8], show: &impl Fn(&str)) {
        let room = OUTPUT_LIMIT.saturating_sub(self.kept.len());
        let (kept, dropped) = bytes.split_at(room.min(bytes.len()));
        let from = self.kept.len();
        self.kept.extend_from_slice(kept);
        let ends = kept.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        for (at, _) in ends {
            self.show_line(from.saturating_add(at).saturating_add(1), show);
        }
        self.drop_bytes(dropped);
    }

    /// Looks for the start of a report in `bytes`, which are not kept.
    fn drop_bytes(&mut self, bytes: &[u8]) {
        if self.dropped == 0 && !bytes.is_empty() {
            let line = self.kept.get(self.line..).unwrap_or_default();
            self.dropped_line = line.to_vec();
        }
        self.dropped = self.dropped.saturating_add(bytes.len());
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.dropped_line.extend_from_slice(part);
            let surplus = self.dropped_line.len().saturating_sub(SEARCHED_LINE);
            if surplus > 0 {
                // A terminal's line may have many lines for the reader, which also ends them at \r.
                self.has_late_report = self.has_late_report();
                self.dropped_line.drain(..surplus);
            }
            if part.ends_with(b"\n") {
                self.has_late_report = self.has_late_report();
                self.dropped_line.clear();
            }
        }
    }

    /// Returns `true` if a report begins in the dropped output.
    fn has_late_report(&self) -> bool {
        let line = String::from_utf8_lossy(&self.dropped_line);
        self.has_late_report || ProgramReport::begins_in(&line)
    }

    /// Shows the output up to `end` that has not been shown yet, if any.
    fn show_line(&mut self, end: usize, show: &impl Fn(&str)) {
        let line = self.kept.get(self.line..end).unwrap_or_default();
        if !line.is_empty() {
            show(String::from_utf8_lossy(line).trim_end_matches('\n'));
        }
        self.line = end;
    }

    /// Returns the kept output with a note about the rest, and `true` if it is complete.
    fn kept(self, collected: io::Result<()>) -> (String, bool) {
        let mut output = String::from_utf8_lossy(&self.kept).into_owned();
        if self.dropped > 0 {
            output.push_str(&format!("\n[{} bytes more]", self.dropped));
        }
        match collected {
            Ok(()) => (output, self.dropped == 0),
            Err(error) => (
                format!("{output}\n[the output could not be read: {error}]"),
                false,
            ),
        }
    }
}

/// Reads the rest of a pipe that a daemon keeps, so that it neither blocks nor gets SIGPIPE when it
/// writes.
fn read_on(mut pipe: File) -> io::Result<()> {
    ioctl_fionbio(pipe.as_fd(), false)?;
    let reader = thread::Builder::new().name("daemon-output".to_owned());
    reader.spawn(move || io::copy(&mut pipe, &mut io::sink()))?;
    Ok(())
}

/// Returns `true` if the child ended within `limit`.
fn wait_for_exit(child: &Child, limit: Duration) -> anyhow::Result<bool> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .context("cannot watch the shell")?;
    let timeout = Timespec::try_from(limit).context("bad time-out")?;
    let ended =
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)).context("cannot wait")?;
    Ok(ended > 0)
}

impl Ran {
    /// Returns the exit status as a shell reports it: 128 plus the signal's number for a process
    /// that was killed.
    pub(crate) fn code(&self) -> i32 {
        self.status
            .code()
            .or_else(|| {
                self.status
                    .signal()
                    .map(|signal| signal.saturating_add(128))
            })
            .unwrap_or(-1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        command
    }

    fn shell(line: &str, limit: Duration) -> Ran {
        capture(command(line), limit, |_| ()).unwrap()
    }

    #[test]
    fn report_that_begins_behind_what_is_kept_is_noticed() {
        let is_late = |start: &str, end: &str| {
            let filler = vec![b'x'; OUTPUT_LIMIT];
            let mut output = Output::default();
            for bytes in [&filler, start.as_bytes(), end.as_bytes()] {
                output.take(bytes, &|_: &str| ());
            }
            output.has_late_report()
        };
        assert!(is_late("x\nTAP ver", "sion 14\nnot ok 1\n"));
        assert!(is_late("x\nktap  Version 1", "\nnot ok 1\n"));
        assert!(is_late("x\n\x1b[1mTAP version 13\x1b[0m\n", "1..1\n"));
        assert!(is_late("running: TAP version 1", "3"));
        let progress = "50%\r".repeat(SEARCHED_LINE);
        assert!(is_late("TAP version 13\r1..1\rnot ok 1\r", &progress));
        assert!(!is_late("x\nTAP ver", "tical line\n"));
        assert!(!is_late("x\n# TAP version ", "14 has subtests\n"));
    }

    #[test]
    fn version_line_that_is_kept_in_part_is_noticed() {
        let mut output = Output::default();
        let filler = "x\n".repeat(OUTPUT_LIMIT / 2 - 4);
        let text = format!("{filler}KTAP version 1\nnot ok 1 - a\n");
        output.take(text.as_bytes(), &|_: &str| ());
        assert!(output.has_late_report());
    }

    #[test]
    fn both_streams_and_the_status_are_captured() {
        let ran = shell("echo out; echo err >&2; exit 3", Duration::from_secs(60));
        assert_eq!(
            (ran.code(), ran.output.as_str(), ran.timed_out),
            (3, "out\nerr\n", false)
        );
        assert!(ran.is_whole);
    }

    #[test]
    fn at_the_limit_the_whole_group_is_killed() {
        let (seen, lines) = std::sync::mpsc::channel();
        // The limit is over once the program has printed something.
        let wait = |child: &Child| {
            lines.recv().unwrap();
            wait_for_exit(child, Duration::ZERO)
        };
        let show = move |_: &str| seen.send(()).unwrap();
        let ran = capture_until(command("sleep 1000 & echo started; wait"), wait, show).unwrap();
        assert_eq!(
            (ran.code(), ran.output.as_str(), ran.timed_out),
            (137, "started\n", true)
        );
    }

    #[test]
    fn each_line_is_shown_as_it_comes() {
        let (seen, lines) = std::sync::mpsc::channel();
        let command = command("echo first; echo second >&2; printf third");
        let show = move |line: &str| seen.send(line.to_owned()).unwrap();
        capture(command, Duration::from_secs(60), show).unwrap();
        assert_eq!(
            lines.iter().collect::<Vec<_>>(),
            ["first", "second", "third"]
        );
    }

    #[test]
    fn daemon_that_keeps_the_streams_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [begun, end] = ["begun", "end"].map(|name| folder.path().join(name));
        let made = Command::new("mkfifo").args([&begun, &end]).status();
        assert!(made.unwrap().success());
        let line = "setsid sh -c 'echo > begun; read line < end' & read line < begun; echo started";
        let mut daemon = command(line);
        daemon.current_dir(&folder);
        let ran = capture(daemon, Duration::from_secs(60), |_| ()).unwrap();
        let found = (ran.code(), ran.output.as_str(), ran.timed_out, ran.is_whole);
        assert_eq!(found, (0, "started\n", false, true));
        // The daemon has survived, otherwise this would wait for a reader.
        std::fs::write(end, "\n").unwrap();
    }

    #[test]
    fn endless_output_is_cut() {
        let ran = shell(
            "head -c 300000 /dev/zero | tr '\\0' x",
            Duration::from_secs(60),
        );
        assert!(
            ran.output
                .ends_with(&format!("x\n[{} bytes more]", 300_000 - OUTPUT_LIMIT))
        );
        assert!(!ran.is_whole);
    }
}
