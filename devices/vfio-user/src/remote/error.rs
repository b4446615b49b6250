//! The errors of a session with a server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::framing::FramingError;

/// The reason for which no session with a server could begin.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No process listens there.
    #[error("no vfio-user server at {path}: start it first", path = .0.display())]
    NotThere(PathBuf),
    /// The file there is not a socket.
    #[error("{path} is not a socket: correct the path", path = .0.display())]
    NotASocket(PathBuf),
    /// The socket cannot be used.
    #[error("cannot connect to the vfio-user server at {}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The server does not agree on a version, or does not describe a PCI device.
    #[error("the server at {} cannot be used", path.display())]
    Server {
        /// The path of its socket.
        path: PathBuf,
        /// The cause.
        source: SessionStartError,
    },
}

/// The reason for which a server that listens cannot be used.
#[derive(Debug, Error)]
pub enum SessionStartError {
    /// A thread or a descriptor is missing.
    #[error("cannot start a session")]
    System(#[from] io::Error),
    /// It does not answer VERSION as a vfio-user server does.
    #[error("it does not speak vfio-user")]
    Version(#[source] CallError),
    /// It does not describe its device.
    #[error("it does not describe its device")]
    Info(#[from] CallError),
    /// Its device is not a PCI device.
    #[error("its device is not a PCI device")]
    NotPci,
}

/// The reason for which a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The server refused it.
    #[error("the server refuses it: {0}")]
    Refused(Errno),
    /// The reply does not match the command.
    #[error("the server's reply makes no sense")]
    Malformed,
    /// The session is over.
    #[error("the server has ended the session")]
    Gone,
    /// No reply came in time.
    #[error("the server does not answer")]
    TimedOut,
}

impl CallError {
    /// Returns the errno with which a client of ours learns of the failure.
    pub fn errno(self) -> Errno {
        match self {
            Self::Refused(errno) => errno,
            Self::Malformed => Errno::PROTO,
            Self::Gone => Errno::NODEV,
            Self::TimedOut => Errno::TIMEDOUT,
        }
    }
}

/// The reason for which a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemoteEnd {
    /// The server has closed its socket.
    #[error("it has closed its socket")]
    HungUp,
    /// Its stream is not a sequence of messages.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(Errno),
    /// A call got no reply in time.
    #[error("it has not answered a message for {0:?}")]
    NotAnswering(Duration),
    /// The server has sent more requests for DMA than can wait for their answers.
    #[error("it has sent too many requests for DMA at once")]
    TooManyRequests,
    /// The server has refused to take back a mapping, so it may still use the memory.
    #[error("it has refused to unmap memory")]
    KeepsMapping,
    /// This side has ended the session.
    #[error("it was closed on this side")]
    Closed,
}
