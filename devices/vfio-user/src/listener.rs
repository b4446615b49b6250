//! The socket file that clients connect to, one at a time.

use std::error::Error as _;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use peerbar_host::socket_file::exhaustion::{BACK_OFF, is_exhaustion};
use peerbar_host::socket_file::{BindError, SocketFile};
use rustix::net::SocketType;
use thiserror::Error;

use crate::accept::accept;
use crate::device::Device;
use crate::readiness;
use crate::server::{Options, serve_alone};
use crate::stop::Stop;
use crate::unanswered::Unanswered;

/// Clients that may wait to be accepted; all except one are disconnected.
const BACKLOG: i32 = 128;

/// No client can connect any more.
#[derive(Debug, Error)]
#[error("cannot accept a client at {}", path.display())]
pub struct ListenError {
    /// The socket's path.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

/// A socket file that clients connect to. Removed from the file system when dropped.
#[derive(Debug)]
pub struct Listener {
    file: SocketFile,
    socket: UnixListener,
    unanswered: Unanswered,
}

impl Listener {
    /// Makes the socket file. Replaces one that a dead server has left.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let unanswered = Unanswered::new().map_err(|source| BindError::System {
            path: path.to_owned(),
            source,
        })?;
        let end = |client| unanswered.refuse(&client);
        let (file, socket) = SocketFile::make_with(path, SocketType::STREAM, BACKLOG, end)?;
        Ok(Self {
            file,
            socket: UnixListener::from(socket),
            unanswered,
        })
    }

    /// Serves `device` to one client after the other until [`Options::stop`] is triggered. A client that connects during
    /// another one's session is disconnected, so that it fails instead of waiting. A session that ends badly is logged.
    pub fn run(&self, device: &mut dyn Device, options: &Options) -> Result<(), ListenError> {
        loop {
            let path = self.file.path();
            let client = self.accept(&options.stop).map_err(|source| ListenError {
                path: path.to_owned(),
                source,
            })?;
            let Some(stream) = client else {
                return Ok(());
            };
            log::info!("{}: a client has connected", path.display());
            self.unanswered.clear();
            self.hold(Some(&stream));
            let (socket, unanswered) = (Some(&self.socket), Some(&self.unanswered));
            let served = serve_alone(stream, device, options, socket, unanswered);
            self.hold(None);
            match served {
                Ok(()) => log::info!("{}: the session is over", path.display()),
                Err(error) => {
                    let cause = error.source().map(|cause| format!(": {cause}"));
                    let cause = cause.unwrap_or_default();
                    log::warn!("{}: session lost: {error}{cause}", path.display());
                }
            }
        }
    }

    /// Arranges answers to the client's requests in case this process is killed.
    fn hold(&self, stream: Option<&UnixStream>) {
        if let Err(error) = self.file.hold(stream.map(AsFd::as_fd)) {
            log::warn!(
                "{}: a client of a killed server would wait: {error}",
                self.file.path().display()
            );
        }
    }

    /// Returns the next client, or `None` after a stop.
    fn accept(&self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        while !stop.is_triggered() {
            let client = match accept(&self.socket) {
                Err(error) if is_exhaustion(&error) => {
                    log::warn!("{}: no client for now: {error}", self.file.path().display());
                    readiness::wait_for(Some(BACK_OFF), [stop.as_fd()])?;
                    continue;
                }
                accepted => accepted?,
            };
            match client.map(|client| self.file.check_peer(&client).map(|()| client)) {
                Some(Ok(client)) => return Ok(Some(client)),
                Some(Err(error)) => log::warn!("{error}"),
                None => drop(readiness::wait([stop.as_fd(), self.socket.as_fd()])?),
            }
        }
        Ok(None)
    }
}
