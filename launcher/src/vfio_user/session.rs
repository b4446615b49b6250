//! `peerbar vfio-user trace`: one connection, from the client's arrival to its end.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_host::socket_file::{BindError, SocketFile};
use peerbar_lab::exit::Failure;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::{columns, print, say};
use peerbar_vfio_user::relay::{Relay, now};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketType;

use super::json::JsonLines;
use super::lines::{Lines, TextLines};
use super::output::Output;
use super::time_line::TimeLine;
use super::tracer::Tracer;
use crate::cli::VfioUserTrace;

/// Clients that may wait. All except one are disconnected.
const BACKLOG: i32 = 8;
/// Bytes of a payload from which its fields are decoded: the longest REGION_WRITE_MULTI and lists of
/// capabilities fit.
const DECODED: usize = 16 << 10;

/// Traces a connection.
pub(super) fn trace(options: &VfioUserTrace) -> Result<ExitCode, Failure> {
    let files = Files::create(options)?;
    let listening = Listening::begin(options)?;
    let server = connect(&options.socket)?;
    let signals = Signals::new()?;
    let path = listening.file.path().display();
    say(format_args!("peerbar: the client connects to {path}"));
    let Some(client) = listening.client(&server, &signals)? else {
        return Ok(ExitCode::SUCCESS);
    };
    run(options, files, &listening, (client, server), &signals)?;
    Ok(ExitCode::SUCCESS)
}

/// The files that the user names.
struct Files {
    output: Option<File>,
    time_line: Option<TimeLine>,
}

impl Files {
    fn create(options: &VfioUserTrace) -> anyhow::Result<Self> {
        let create = |path: &PathBuf| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let perfetto = options.perfetto.as_ref();
        let time_line = perfetto.map(|path| TimeLine::begin(path, create(path)?));
        Ok(Self {
            output: options.output.as_ref().map(create).transpose()?,
            time_line: time_line.transpose()?,
        })
    }
}

fn run(
    options: &VfioUserTrace,
    files: Files,
    listening: &Listening,
    (client, server): (UnixStream, UnixStream),
    signals: &Signals,
) -> Result<(), Failure> {
    let data = usize::try_from(options.data).context("too much data")?;
    let columns = columns().filter(|_| options.output.is_none());
    let start = now();
    let lines: Box<dyn Lines> = match options.json {
        true => Box::new(JsonLines::new(start)),
        false => Box::new(TextLines::new(start, columns)),
    };
    let is_file = files.output.is_some();
    let output = Output::start(files.output)?;
    let only = options.only.iter().map(|command| command.0).collect();
    let mut tracer = Tracer::new(lines, output, files.time_line, only, data);
    let relay = Relay::new(client, server, DECODED.saturating_add(data));
    let stop = signals.any()?.context("signals cannot be handled")?;
    relay
        .run(stop.as_fd(), Some(&listening.socket), &mut tracer)
        .context("cannot wait for the client and the server")?;
    let summary = tracer.finish(signals)?;
    if is_file {
        print(&summary)?;
    }
    Ok(())
}

/// Connects to the server, without waiting for an answer.
fn connect(path: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(path).map_err(|error| {
        let path = path.display();
        Failure::Usage(anyhow!(error).context(format!(
            "no vfio-user server at {path}: start the server first, and name its socket"
        )))
    })
}

/// The socket for the client.
struct Listening {
    file: SocketFile,
    socket: UnixListener,
}

impl Listening {
    fn begin(options: &VfioUserTrace) -> Result<Self, Failure> {
        let path = options.listen.clone();
        let path = path.unwrap_or_else(|| default_path(&options.socket));
        let (file, socket) = SocketFile::make(&path, SocketType::STREAM, BACKLOG)
            .map_err(|error| usage(error, &path))?;
        let socket = UnixListener::from(socket);
        Ok(Self { file, socket })
    }

    /// Waits for a client. Returns `None` after a signal.
    ///
    /// # Errors
    /// The server has hung up.
    fn client(
        &self,
        server: &UnixStream,
        signals: &Signals,
    ) -> Result<Option<UnixStream>, Failure> {
        let stop: OwnedFd = signals.any()?.context("signals cannot be handled")?;
        loop {
            let sources = [
                (self.socket.as_fd(), PollFlags::IN),
                (stop.as_fd(), PollFlags::IN),
                // Only its end, because what it sends waits for the client.
                (server.as_fd(), PollFlags::empty()),
            ];
            let [is_called, is_stopped, is_left] = ready(sources)?;
            if is_stopped {
                return Ok(None);
            }
            if let Some(client) = is_called.then(|| self.accept()).flatten() {
                return Ok(Some(client));
            }
            if is_left {
                return Err(Failure::Failed(anyhow!(
                    "the server has closed the connection before a client came"
                )));
            }
        }
    }

    /// Returns the next client, if there is one of a user who may connect.
    fn accept(&self) -> Option<UnixStream> {
        let (client, _) = self.socket.accept().ok()?;
        match self.file.check_peer(&client) {
            Ok(()) => Some(client),
            Err(error) => {
                say(format_args!("peerbar: {error}"));
                None
            }
        }
    }
}

/// Waits for an event or the end of a descriptor, and returns `true` for each that has one.
fn ready<const N: usize>(fds: [(BorrowedFd<'_>, PollFlags); N]) -> anyhow::Result<[bool; N]> {
    let mut fds = fds.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(error) => Err(anyhow!(error).context("cannot wait for a client")),
    }
}

fn default_path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".trace");
    path.into()
}

/// Returns the failure of a socket that the user can choose with `--listen`.
fn usage(error: BindError, path: &Path) -> Failure {
    match error {
        BindError::System { source, .. } => Failure::Usage(anyhow!(source).context(format!(
            "cannot make the socket {}: --listen chooses another one",
            path.display()
        ))),
        error => Failure::Usage(anyhow!(error)),
    }
}
