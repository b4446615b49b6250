//! The server under test: how to reach it, and its process if the check starts it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

/// The interval in which a server that has no event for it is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// The reason why no test can run.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nobody listens.
    #[error("no vfio-user server at {}: start it first, or name its command after --", path.display())]
    NoServer {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A server listens, although the check was to start one.
    #[error("a server already listens at {}: stop it, or leave out the command", .0.display())]
    InUse(PathBuf),
    /// The command cannot be started.
    #[error("cannot start the command")]
    Command(#[source] io::Error),
    /// The command has ended, or does not listen in time.
    #[error("the command does not make a socket at {}: {reason}", path.display())]
    NotReady {
        /// The socket.
        path: PathBuf,
        /// Its action instead.
        reason: String,
    },
}

/// The server: its socket, and its process if the check has started it.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// The program and its arguments; empty if somebody else starts the server.
    command: Vec<OsString>,
    time_out: Duration,
    child: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    pub(crate) fn new(path: PathBuf, command: Vec<OsString>, time_out: Duration) -> Self {
        Self {
            path,
            command,
            time_out,
            child: None,
        }
    }

    /// Starts the command, or checks that somebody else's server listens.
    pub(crate) fn begin(&mut self) -> Result<UnixStream, StartError> {
        let connected = self.connect();
        match (connected, self.is_ours()) {
            (Ok(_), true) => Err(StartError::InUse(self.path.clone())),
            (Ok(stream), false) => Ok(stream),
            (Err(_), true) => self.start(),
            (Err(source), false) => Err(StartError::NoServer {
                path: self.path.clone(),
                source,
            }),
        }
    }

    /// Returns `true` if the check starts the server.
    pub(crate) fn is_ours(&self) -> bool {
        !self.command.is_empty()
    }

    /// Starts the command, and waits until it listens.
    pub(crate) fn start(&mut self) -> Result<UnixStream, StartError> {
        self.kill();
        remove_stale(&self.path);
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(StartError::NoServer {
                path: self.path.clone(),
                source: io::ErrorKind::ConnectionRefused.into(),
            });
        };
        let spawned = stderr().and_then(|stderr| {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(stderr);
            command.spawn()
        });
        self.child = Some(spawned.map_err(StartError::Command)?);
        self.connect_to_new()
            .map_err(|reason| StartError::NotReady {
                path: self.path.clone(),
                reason,
            })
    }

    /// Connects as soon as the server listens. Nothing tells when it does.
    fn connect_to_new(&mut self) -> Result<UnixStream, String> {
        let deadline = Instant::now() + self.time_out;
        loop {
            let error = match self.connect() {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if let Some(status) = self.ended_within(PAUSE) {
                return Err(ended(status));
            }
            if Instant::now() >= deadline {
                return Err(format!("{error} for {:?}", self.time_out));
            }
        }
    }

    /// Connects, within the time-out even if the server accepts nobody.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        let address = SocketAddrUnix::new(&self.path)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(self.time_out))?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(UnixStream::from(socket)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the end of the process. Returns its status, or `None` if it goes on.
    pub(crate) fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
        wait_for(&process, limit);
        child.try_wait().ok().flatten()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a description of a process' end.
pub(crate) fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the server was ended by signal {signal}"),
        (None, Some(code)) => format!("the server has ended with exit status {code}"),
        (None, None) => "the server has ended".to_owned(),
    }
}

/// Waits until a descriptor has an event, at most for `limit`.
pub(crate) fn wait_for(fd: impl AsFd, limit: Duration) -> bool {
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).ok();
    poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Returns a copy of standard error, for the output of a server: standard output is the report.
fn stderr() -> io::Result<OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned()
}

/// Removes the socket file of a server that has died.
fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        // Fails if the server cannot bind either, which reports it.
        let _ = fs::remove_file(path);
    }
}
