//! A switch from an endpoint's side: its socket, and the handshake there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peerbar_host::socket_file::packets::{self, Message as _, ReceiveError};
use rustix::io::Errno;
use thiserror::Error;

use crate::limits::{MAX_NAME, PROTOCOL, SWITCH_TIME_OUT};
use crate::link_mode::LinkMode;
use crate::message::{Message, Refusal};
use crate::window::Descriptor;

/// The reason why an endpoint cannot attach to its switch.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Its name is not valid.
    #[error("name {0:?}: a switch takes 1 to {MAX_NAME} printable ASCII characters")]
    Name(String),
    /// No process listens there.
    #[error("no switch at {path}: start `peerbar-switch --socket-path {path}` first", path = .0.display())]
    NotThere(PathBuf),
    /// The switch refuses the endpoint.
    #[error("the switch at {} rejects {name}: {refusal}", path.display())]
    Refused {
        /// Path of the switch.
        path: PathBuf,
        /// Name of the endpoint.
        name: String,
        /// The reason.
        refusal: Refusal,
    },
    /// The process that listens there does not answer like a switch.
    #[error("the server at {} is not a switch: name the socket of a peerbar-switch", .0.display())]
    NoSwitch(PathBuf),
    /// A descriptor cannot be copied for the switch.
    #[error("cannot copy a descriptor for the switch")]
    Descriptor(#[source] io::Error),
    /// The memory of the switch's count of changes cannot be used.
    #[error("cannot map the switch's count of changes")]
    Changes(#[source] io::Error),
    /// The operating system reported an error.
    #[error("cannot attach to the switch at {}", path.display())]
    System {
        /// Path of the switch.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The path of an endpoint's switch, and the endpoint's name there.
#[derive(Clone, Debug)]
pub(crate) struct SwitchAddress {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl SwitchAddress {
    /// Connects to the switch.
    pub(crate) fn connect(&self) -> Result<OwnedFd, AttachError> {
        connected(&self.path)
    }

    /// Says Hello and waits for the Welcome. Returns the switch's treatment of requests to peers,
    /// and the memory of its count of changes.
    pub(crate) fn attach(&self, socket: &OwnedFd) -> Result<(LinkMode, Descriptor), AttachError> {
        let (path, name) = (&self.path, self.name.clone());
        let deadline = Instant::now() + SWITCH_TIME_OUT;
        let hello = Message::Hello {
            protocol: PROTOCOL,
            name: name.clone(),
        };
        packets::send_until(socket, &hello.encode(), deadline)
            .map_err(|errno| system(path, errno))?;
        match Message::receive_until(socket, &mut Message::space(), Some(deadline)) {
            Ok(Message::Welcome { mode, changes, .. }) => Ok((mode, changes)),
            Ok(Message::Refused(refusal)) => Err(AttachError::Refused {
                path: path.clone(),
                name,
                refusal,
            }),
            Err(ReceiveError::System(errno)) if errno != Errno::TIMEDOUT => {
                Err(system(path, errno))
            }
            _ => Err(AttachError::NoSwitch(path.clone())),
        }
    }
}

fn connected(path: &Path) -> Result<OwnedFd, AttachError> {
    match packets::connection(path) {
        Ok(socket) => Ok(socket),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Err(AttachError::NotThere(path.to_owned())),
        Err(Errno::PROTOTYPE | Errno::AGAIN) => Err(AttachError::NoSwitch(path.to_owned())),
        Err(errno) => Err(system(path, errno)),
    }
}

fn system(path: &Path, errno: Errno) -> AttachError {
    AttachError::System {
        path: path.to_owned(),
        source: errno.into(),
    }
}
