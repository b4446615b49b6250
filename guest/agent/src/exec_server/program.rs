//! One program of the host, from its start to its end.

#![expect(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use peerbar_host::eventfd::EventFd;
use peerbar_report::exec::{GuestMessage, HostMessage, INPUT_WINDOW, ProgramEnd, ProgramRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, ioctl_tiocsctty, kill_process_group, pidfd_open, setsid,
};
use vsock::VsockStream;

use super::input_queue::InputQueue;
use super::streams::{self, Streams};
use crate::tools;

/// Exit status for a program that cannot be started, as in a shell.
pub(super) const CANNOT_START: i32 = 126;
/// Exit status for a program that does not exist, as in a shell.
const NOT_FOUND: i32 = 127;
/// Root's shell.
const SHELL: &str = "/bin/bash";
/// Time that a program has to end after its host has left.
const GRACE: Duration = Duration::from_secs(2);
/// Consumed input is reported in portions of this many bytes while there is more.
const REPORTED: u32 = INPUT_WINDOW / 4;
/// Bytes that a terminal interprets as the end of input (termios(3), VEOF).
const END_OF_INPUT: &[u8] = &[4];

/// A program that runs.
pub(super) struct RunningProgram {
    child: Child,
    streams: Streams,
    shared: Arc<Shared>,
    /// `true` once it has got SIGKILL because its host left.
    is_killed: bool,
    /// Bytes of input that it has taken without the host's knowledge.
    taken: u32,
    /// Folders to remove once it has ended.
    temporary: Vec<String>,
}

/// State shared by the thread that reads the host's messages and the thread that serves the
/// program's streams.
struct Shared {
    input: Mutex<InputQueue>,
    /// Its process group while it may be signalled: no other process gets its number before it is
    /// reaped.
    group: Mutex<Option<Pid>>,
    /// The time at which the host left.
    left: Mutex<Option<Instant>>,
    /// Becomes readable with a change of the other fields.
    changed: EventFd,
}

/// Starts the requested program. An error contains the reason and the exit status.
pub(super) fn start(request: &ProgramRequest) -> Result<RunningProgram, (String, i32)> {
    let folder = request.folder.as_deref().unwrap_or("/");
    if !Path::new(folder).is_dir() {
        let reason = format!("the guest has no folder {folder}");
        return Err((reason, CANNOT_START));
    }
    let (program, arguments) = match request.words.split_first() {
        Some((program, arguments)) => (program.as_str(), arguments),
        None => (SHELL, [].as_slice()),
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .envs(tools::ENVIRONMENT)
        .envs(&request.environment);
    spawn(command, request).map_err(|error| {
        let absent = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
        let status = if absent { NOT_FOUND } else { CANNOT_START };
        let reason = format!("cannot start {program} in {folder} of the guest: {error:#}");
        (reason, status)
    })
}

fn spawn(mut command: Command, request: &ProgramRequest) -> anyhow::Result<RunningProgram> {
    let streams = match request.terminal {
        Some(size) => Streams::terminal(&mut command, size)?,
        None => Streams::pipes(&mut command)?,
    };
    let has_terminal = request.terminal.is_some();
    let begin = move || {
        setsid()?;
        if has_terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec this makes two system calls and touches only its own memory.
    unsafe { command.pre_exec(begin) };
    let child = command.spawn()?;
    let shared = Shared {
        input: Mutex::default(),
        group: Mutex::new(Some(Pid::from_child(&child))),
        left: Mutex::default(),
        changed: EventFd::new()?,
    };
    Ok(RunningProgram {
        child,
        streams,
        shared: Arc::new(shared),
        is_killed: false,
        taken: 0,
        temporary: request.temporary.clone(),
    })
}

impl RunningProgram {
    /// Serves the program to its end.
    ///
    /// # Errors
    /// The reason why it cannot be served; the program is killed.
    pub(super) fn run(mut self, stream: VsockStream) -> anyhow::Result<()> {
        let host = stream.try_clone().context("cannot share the connection")?;
        let terminal = self.streams.terminal.take();
        let shared = Arc::clone(&self.shared);
        let reader = thread::spawn(move || shared.follow(host, terminal.as_ref()));
        let mut stream = Some(stream);
        let served = self.serve(&mut stream);
        // A program that is not reaped keeps the number of its group. Remaining processes of the
        // group would fill the folders again.
        if served.is_err() || !self.temporary.is_empty() {
            self.shared.signal(Signal::KILL);
        }
        let status = self.reap()?;
        for folder in &self.temporary {
            remove(Path::new(folder));
        }
        if let Some(mut stream) = stream {
            // A host that is gone needs no answer.
            let _ = GuestMessage::Ended(end_of(status)).write_to(&mut stream);
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        match reader.join() {
            Ok(followed) => served.and(followed),
            Err(_) => bail!("the thread that reads the host's messages panicked"),
        }
    }

    /// Passes input and output on until the program has ended and all its output is taken.
    fn serve(&mut self, stream: &mut Option<VsockStream>) -> anyhow::Result<()> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .context("cannot watch a program")?;
        loop {
            let ended = self.wait(&process)?;
            // Taken once for all earlier changes.
            self.shared.changed.take();
            self.pass_input(stream);
            let said = self.pass_output(stream);
            if ended && !said {
                return Ok(());
            }
            self.end_if_left(stream);
        }
    }

    /// Waits until there is something to do. Returns `true` if the program has ended.
    fn wait(&self, process: &OwnedFd) -> anyhow::Result<bool> {
        let Streams {
            input,
            output,
            errors,
            ..
        } = &self.streams;
        let writes = self.shared.input.lock().is_due();
        let input = input.as_ref().filter(|_| writes);
        let mut fds = vec![PollFd::new(process, PollFlags::IN)];
        fds.push(PollFd::new(&self.shared.changed, PollFlags::IN));
        fds.extend(input.map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT)));
        let outputs = [output, errors].into_iter().flatten();
        fds.extend(outputs.map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)));
        let left = *self.shared.left.lock();
        let timeout = wait_limit(left.map(|left| left.elapsed()), self.is_killed);
        let timeout = timeout.map(Timespec::try_from).transpose()?;
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .context("cannot wait for a program")?;
        Ok(fds
            .first()
            .is_some_and(|process| !process.revents().is_empty()))
    }

    fn pass_input(&mut self, stream: &mut Option<VsockStream>) {
        let mut queue = self.shared.input.lock();
        let taken = queue.write_to(self.streams.input.as_mut());
        if queue.is_finished() {
            let input = self.streams.input.take();
            if let Some(mut input) = input.filter(|_| self.streams.is_terminal) {
                // A terminal has no end of input by itself.
                let _ = io::Write::write(&mut input, END_OF_INPUT);
            }
        }
        let is_empty = queue.is_empty();
        drop(queue);
        self.taken = self.taken.saturating_add(taken);
        // A program takes its input in small pieces. Reporting each of them would make the host
        // send such pieces, too.
        if self.taken >= REPORTED || (is_empty && self.taken > 0) {
            send(stream, &GuestMessage::InputTaken(self.taken));
            self.taken = 0;
        }
    }

    /// Passes on a chunk of each output. Returns `true` if there was any.
    fn pass_output(&mut self, stream: &mut Option<VsockStream>) -> bool {
        let Streams { output, errors, .. } = &mut self.streams;
        let mut said = false;
        if let Some(bytes) = streams::read(output) {
            said = true;
            send(stream, &GuestMessage::Output(bytes));
        }
        if let Some(bytes) = streams::read(errors) {
            said = true;
            send(stream, &GuestMessage::ErrorOutput(bytes));
        }
        said
    }

    /// Ends a program whose host has left: by SIGHUP at once, by SIGKILL later.
    fn end_if_left(&mut self, stream: &mut Option<VsockStream>) {
        let Some(left) = *self.shared.left.lock() else {
            return;
        };
        if stream.take().is_some() {
            self.shared.signal(Signal::HUP);
            self.shared.signal(Signal::CONT);
        }
        if left.elapsed() >= GRACE {
            self.shared.signal(Signal::KILL);
            self.is_killed = true;
        }
    }

    /// Returns the status of a program that has ended or been killed. It gets no more signals.
    fn reap(&mut self) -> anyhow::Result<ExitStatus> {
        *self.shared.group.lock() = None;
        self.child.wait().context("cannot wait for a program")
    }
}

/// Removes a folder, if it is there. Killed processes may still add to it until they are gone.
fn remove(folder: &Path) {
    let limit = Instant::now().checked_add(GRACE);
    loop {
        match fs::remove_dir_all(folder) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) if limit.is_some_and(|limit| Instant::now() < limit) => thread::yield_now(),
            Err(error) => {
                return eprintln!("peerbar-agent: cannot remove {}: {error}", folder.display());
            }
        }
    }
}

/// Returns the longest wait for a program whose host left this long ago. When the limit reaches
/// zero the program is killed, and after that there is no limit.
fn wait_limit(since_left: Option<Duration>, is_killed: bool) -> Option<Duration> {
    let since_left = since_left.filter(|_| !is_killed);
    since_left.map(|since| GRACE.saturating_sub(since))
}

/// Sends a message, unless the host is gone. Output is lost in that case, as in a closed terminal.
fn send(stream: &mut Option<VsockStream>, message: &GuestMessage) {
    let Some(to) = stream else {
        return;
    };
    if message.write_to(to).is_err() {
        // The reading thread sees the same, and ends the program.
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

fn end_of(status: ExitStatus) -> ProgramEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProgramEnd::Exited(code),
        (None, signal) => ProgramEnd::Signaled(signal.unwrap_or_default()),
    }
}

impl Shared {
    /// Follows the host until it leaves.
    fn follow(&self, mut host: VsockStream, terminal: Option<&File>) -> anyhow::Result<()> {
        let followed = self.take_messages(&mut host, terminal);
        *self.left.lock() = Some(Instant::now());
        self.changed.signal();
        followed
    }

    fn take_messages(&self, host: &mut VsockStream, terminal: Option<&File>) -> anyhow::Result<()> {
        while let Some(message) = HostMessage::read_from(host)? {
            match message {
                HostMessage::Input(bytes) => self.input.lock().push(&bytes)?,
                HostMessage::InputEnd => self.input.lock().end(),
                HostMessage::Signal(number) => {
                    let signal = Signal::from_named_raw(number);
                    self.signal(signal.with_context(|| format!("invalid signal number {number}"))?);
                }
                HostMessage::Resize(size) => {
                    if let Some(terminal) = terminal {
                        streams::resize(terminal, size)?;
                    }
                }
                HostMessage::Start(_) => bail!("the host starts a second program"),
            }
            self.changed.signal();
        }
        Ok(())
    }

    /// Signals the program's process group, if there is one.
    fn signal(&self, signal: Signal) {
        if let Some(group) = *self.group.lock() {
            // ESRCH means that its processes have ended.
            let _ = kill_process_group(group, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_folder_is_removed_with_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a");
        fs::create_dir_all(inner.join("b/c")).unwrap();
        fs::write(inner.join("b/file"), "text").unwrap();
        remove(&inner);
        remove(&inner);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn killed_program_is_waited_for_without_a_limit() {
        let tick = Duration::from_millis(1);
        assert_eq!(wait_limit(None, false), None);
        assert_eq!(wait_limit(Some(GRACE - tick), false), Some(tick));
        assert_eq!(wait_limit(Some(GRACE + tick), false), Some(Duration::ZERO));
        // A limit would turn the wait into a busy loop.
        assert_eq!(wait_limit(Some(GRACE + tick), true), None);
    }
}
