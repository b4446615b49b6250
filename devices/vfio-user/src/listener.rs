//! The socket file that clients connect to, one at a time.

use std::error::Error as _;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

use crate::device::Device;
use crate::readiness;
use crate::server::{Options, serve_alone};
use crate::stop::Stop;

/// The longest path that fits into a socket address (unix(7)).
const LONGEST_PATH: usize = 107;

/// Why a [`Listener`] cannot be.
#[derive(Debug, Error)]
pub enum BindError {
    /// The path does not fit into a socket address.
    #[error("socket path {} is {length} bytes long: choose one of at most {LONGEST_PATH}", path.display())]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A server lives there.
    #[error("socket path {} is in use by a live server: stop that one or choose another path", .0.display())]
    InUse(PathBuf),
    /// A file lives there that is no socket. It is left alone.
    #[error("{} exists and is no socket: choose another socket path", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot make the socket {}", path.display())]
    System {
        /// The path as given.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// No client can connect any more.
#[derive(Debug, Error)]
#[error("cannot accept a client at {}", path.display())]
pub struct ListenError {
    /// The socket's path.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// A socket file that clients connect to. Removed from the file system when dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of our socket file, so that nobody else's is removed.
    identity: (u64, u64),
}

impl Listener {
    /// Makes the socket file, in place of one that a dead server has left.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let length = path.as_os_str().as_bytes().len();
        if length > LONGEST_PATH {
            let path = path.to_owned();
            return Err(BindError::TooLong { path, length });
        }
        let system = |source| BindError::System {
            path: path.to_owned(),
            source,
        };
        let _alone = lock_directory(path).map_err(system)?;
        make_way(path)?;
        let socket = UnixListener::bind(path).map_err(system)?;
        socket.set_nonblocking(true).map_err(system)?;
        let metadata = fs::symlink_metadata(path).map_err(system)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            identity: identity(&metadata),
        })
    }

    /// Serves `device` to one client after the other until [`Options::stop`] is triggered. Who connects during a
    /// session is hung up on, so that it fails instead of waiting. A session that ends badly is logged.
    pub fn run(&self, device: &mut dyn Device, options: &Options) -> Result<(), ListenError> {
        loop {
            let client = self.accept(&options.stop).map_err(|source| ListenError {
                path: self.path.clone(),
                source,
            })?;
            let Some(stream) = client else {
                return Ok(());
            };
            log::info!("{}: a client has connected", self.path.display());
            match serve_alone(stream, device, options, Some(&self.socket)) {
                Ok(()) => log::info!("{}: the session is over", self.path.display()),
                Err(error) => {
                    let cause = error.source().map(|cause| format!(": {cause}"));
                    let cause = cause.unwrap_or_default();
                    log::warn!("{}: session lost: {error}{cause}", self.path.display());
                }
            }
        }
    }

    /// The next client; `None` when we are to stop.
    fn accept(&self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        while !stop.is_triggered() {
            match self.socket.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    readiness::wait([stop.as_fd(), self.socket.as_fd()])?;
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = |metadata| identity(&metadata) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours)
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Hangs up on a client that has come during another one's session.
pub(crate) fn turn_away(door: &UnixListener) -> io::Result<()> {
    match door.accept() {
        Ok(_) => {
            log::warn!("a second client has connected and is turned away: a device serves one");
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock || is_passing(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether this accept failed for a reason of one client.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    )
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Two servers that start at once must not take each other's fresh socket for a stale one.
fn lock_directory(path: &Path) -> io::Result<File> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Removes a stale socket; refuses what must stay.
fn make_way(path: &Path) -> Result<(), BindError> {
    let system = |source| BindError::System {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(system(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(BindError::NotASocket(path.to_owned()))
        }
        Ok(_) if is_live(path).map_err(|errno| system(errno.into()))? => {
            Err(BindError::InUse(path.to_owned()))
        }
        Ok(_) => fs::remove_file(path).map_err(system),
    }
}

/// Whether somebody listens. Never waits, even if that one never accepts.
fn is_live(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}
