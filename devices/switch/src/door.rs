//! The socket file that endpoints connect to.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen};
use thiserror::Error;

use crate::socket;
use crate::switch::MAX_PORTS;

/// The longest path that fits into a socket address (unix(7)).
const LONGEST_PATH: usize = 107;

/// Why a switch has no socket.
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

/// A socket file that endpoints connect to. Removed from the file system when dropped.
#[derive(Debug)]
pub(crate) struct Door {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of our socket file, so that nobody else's is removed.
    identity: (u64, u64),
}

impl Door {
    /// Makes the socket file, in place of one that a dead server has left.
    pub(crate) fn open(path: &Path) -> Result<Self, BindError> {
        let length = path.as_os_str().as_bytes().len();
        let path = path.to_owned();
        if length > LONGEST_PATH {
            return Err(BindError::TooLong { path, length });
        }
        let system = |source: io::Error| BindError::System {
            path: path.clone(),
            source,
        };
        let _alone = lock_directory(&path).map_err(system)?;
        make_way(&path)?;
        let socket = listening(&path).map_err(|errno| system(errno.into()))?;
        let metadata = fs::symlink_metadata(&path).map_err(system)?;
        Ok(Self {
            socket,
            identity: identity(&metadata),
            path,
        })
    }

    /// Whoever has connected, if anybody has.
    pub(crate) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let ours = |metadata| identity(&metadata) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours)
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn listening(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket::new()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, i32::try_from(MAX_PORTS).unwrap_or(i32::MAX))?;
    Ok(socket)
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

/// Whether somebody listens, if only for streams. Never waits, even if that one never accepts.
fn is_live(path: &Path) -> Result<bool, Errno> {
    match connect(socket::new()?, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_stale_socket_makes_way_and_a_live_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let door = Door::open(&path).unwrap();
        assert!(matches!(Door::open(&path), Err(BindError::InUse(_))));
        drop(door);
        assert!(!path.exists());
        let streams = UnixListener::bind(&path).unwrap();
        assert!(matches!(Door::open(&path), Err(BindError::InUse(_))));
        drop(streams);
    }

    #[test]
    fn a_file_is_left_alone_and_a_path_that_cannot_be_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "data").unwrap();
        assert!(matches!(Door::open(&path), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let long = folder.path().join("x".repeat(LONGEST_PATH));
        assert!(matches!(Door::open(&long), Err(BindError::TooLong { .. })));
        let nowhere = folder.path().join("no/such");
        assert!(matches!(
            Door::open(&nowhere),
            Err(BindError::System { .. })
        ));
    }
}
