//! The socket that endpoints connect to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use peerbar_socket_file::{BindError, SocketFile};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};

use crate::limits::MAX_PORTS;

/// A socket that endpoints connect to, and its file.
#[derive(Debug)]
pub(crate) struct Listener {
    file: SocketFile,
    socket: OwnedFd,
}

impl Listener {
    /// Makes the socket file, in place of one that a dead server has left.
    pub(crate) fn open(path: &Path) -> Result<Self, BindError> {
        let backlog = i32::try_from(MAX_PORTS).unwrap_or(i32::MAX);
        let (file, socket) = SocketFile::make(path, SocketType::SEQPACKET, backlog)?;
        Ok(Self { file, socket })
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match accept_with(&self.socket, flags) {
            Ok(socket) => match self.file.check_peer(&socket) {
                Ok(()) => Ok(Some(socket)),
                Err(error) => {
                    log::warn!("{error}");
                    Ok(None)
                }
            },
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Path of the socket file.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
