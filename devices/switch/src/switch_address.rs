//! A switch as an endpoint finds it: its socket, and the handshake there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peerbar_socket_file::packets::{self, Message as _, ReceiveError};
use rustix::io::Errno;
use thiserror::Error;

use crate::limits::{MAX_NAME, PROTOCOL, SWITCH_TIME_OUT};
use crate::link_mode::LinkMode;
use crate::message::{Message, Refusal};
use crate::window::Descriptor;

/// Why an endpoint cannot attach to its switch.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Its name does not fit.
    #[error("name {0:?}: a switch takes 1 to {MAX_NAME} printable ASCII characters")]
    Name(String),
    /// No process listens there.
    #[error("no switch at {path}: start `peerbar-switch --socket-path {path}` first", path = .0.display())]
    NotThere(PathBuf),
    /// The switch refuses it.
    #[error("the switch at {} does not take {name}: {refusal}", path.display())]
    Refused {
        /// Where the switch is.
        path: PathBuf,
        /// Name of the endpoint.
        name: String,
        /// Why.
        refusal: Refusal,
    },
    /// The process that listens there does not answer as a switch does.
    #[error("the server at {} is no switch: name the socket of a peerbar-switch", .0.display())]
    NoSwitch(PathBuf),
    /// A descriptor cannot be copied for it.
    #[error("cannot copy a descriptor for the switch")]
    Descriptor(#[source] io::Error),
    /// The memory in which the switch counts changes cannot be used.
    #[error("cannot map the switch's count of changes")]
    Changes(#[source] io::Error),
    /// The system refuses.
    #[error("cannot attach to the switch at {}", path.display())]
    System {
        /// Where the switch is.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Where an endpoint attaches, and under which name.
#[derive(Clone, Debug)]
pub(crate) struct SwitchAddress {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl SwitchAddress {
    /// A connection to the switch there.
    pub(crate) fn connect(&self) -> Result<OwnedFd, AttachError> {
        connected(&self.path)
    }

    /// Says Hello and waits for the Welcome: what the switch does with requests to peers, and the memory of its count of changes.
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
