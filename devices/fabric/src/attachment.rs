//! The attachment of an adapter to its fabric.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peerbar_host::socket_file::packets::{self, Message as _, ReceiveError};
use rustix::io::Errno;
use thiserror::Error;

use crate::codec::is_name;
use crate::gid::Gid;
use crate::limits::{FABRIC_TIME_OUT, MAX_NAME, PROTOCOL};
use crate::message::{Message, Refusal};

/// The reason why an adapter cannot attach to its fabric.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Its name is not valid.
    #[error(
        "name {0:?}: a fabric takes 1 to {MAX_NAME} ASCII letters, digits, hyphens, underscores and dots"
    )]
    Name(String),
    /// No process listens there.
    #[error("no fabric at {path}: start `peerbar-fabric --socket-path {path}` first", path = .0.display())]
    NotThere(PathBuf),
    /// The fabric refuses the adapter.
    #[error("the fabric at {} rejects {name} with {gid}: {refusal}", path.display())]
    Refused {
        /// Path of the fabric.
        path: PathBuf,
        /// Name of the adapter.
        name: String,
        /// Its address.
        gid: Gid,
        /// The reason.
        refusal: Refusal,
    },
    /// The process that listens there does not answer like a fabric.
    #[error("the server at {} is not a fabric: name the socket of a peerbar-fabric", .0.display())]
    NoFabric(PathBuf),
    /// The operating system reported an error.
    #[error("cannot attach to the fabric at {}", path.display())]
    System {
        /// Path of the fabric.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The path of an adapter's fabric, and the adapter's name and address there.
#[derive(Clone, Debug)]
pub(crate) struct FabricAddress {
    path: PathBuf,
    name: String,
    gid: Gid,
}

impl FabricAddress {
    /// Connects to the fabric.
    pub(crate) fn connect(&self) -> Result<OwnedFd, AttachError> {
        packets::connection(&self.path).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => AttachError::NotThere(self.path.clone()),
            Errno::PROTOTYPE | Errno::AGAIN => AttachError::NoFabric(self.path.clone()),
            errno => self.system(errno.into()),
        })
    }

    /// Says Hello and waits for the Welcome.
    pub(crate) fn attach(&self, socket: &OwnedFd) -> Result<(), AttachError> {
        let deadline = Instant::now() + FABRIC_TIME_OUT;
        let hello = Message::Hello {
            protocol: PROTOCOL,
            name: self.name.clone(),
            gid: self.gid,
        };
        packets::send_until(socket, &hello.encode(), deadline)
            .map_err(|errno| self.system(errno.into()))?;
        match Message::receive_until(socket, &mut Message::space(), Some(deadline)) {
            Ok(Message::Welcome { .. }) => Ok(()),
            Ok(Message::Refused(refusal)) => Err(AttachError::Refused {
                path: self.path.clone(),
                name: self.name.clone(),
                gid: self.gid,
                refusal,
            }),
            Err(ReceiveError::System(errno)) if errno != Errno::TIMEDOUT => {
                Err(self.system(errno.into()))
            }
            _ => Err(AttachError::NoFabric(self.path.clone())),
        }
    }

    pub(crate) fn system(&self, source: io::Error) -> AttachError {
        let path = self.path.clone();
        AttachError::System { path, source }
    }
}

/// An adapter that is attached, but does not exchange messages yet.
#[derive(Debug)]
pub struct Attachment {
    pub(crate) address: FabricAddress,
    pub(crate) socket: OwnedFd,
}

impl Attachment {
    /// Attaches to the fabric at `path` under a name and an address that are unique there.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn new(path: &Path, name: &str, gid: Gid) -> Result<Self, AttachError> {
        if !is_name(name) {
            return Err(AttachError::Name(name.to_owned()));
        }
        let address = FabricAddress {
            path: path.to_owned(),
            name: name.to_owned(),
            gid,
        };
        let socket = address.connect()?;
        address.attach(&socket)?;
        Ok(Self { address, socket })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const GID: Gid = Gid([1; 16]);

    #[test]
    fn missing_fabric_and_other_server_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let error = Attachment::new(&path, "nic0", GID).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("start `peerbar-fabric --socket-path"),
            "{text}"
        );
        let listener = UnixListener::bind(&path).unwrap();
        let error = Attachment::new(&path, "nic0", GID).unwrap_err();
        assert!(matches!(error, AttachError::NoFabric(_)), "{error}");
        drop(listener);
        // A process that another test starts keeps a copy of the socket for a moment.
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        let error = Attachment::new(&path, "nic0", GID).unwrap_err();
        assert!(matches!(error, AttachError::NotThere(_)), "{error}");
    }

    #[test]
    fn name_that_does_not_fit_is_refused() {
        for name in ["", "a b", "\u{fc}", "a->b", &"x".repeat(33)] {
            let error = Attachment::new(Path::new("/"), name, GID).unwrap_err();
            assert!(matches!(error, AttachError::Name(_)), "{error}");
        }
    }
}
