//! How an endpoint attaches to its switch.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect};
use thiserror::Error;

use crate::limits::{MAX_NAME, PROTOCOL};
use crate::link::{Link, PeerHandler, SWITCH_TIME_OUT};
use crate::link_mode::LinkMode;
use crate::message::{Message, Refusal};
use crate::packet::is_name;
use crate::socket::{self, ReceiveError};

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
    /// The system refuses.
    #[error("cannot attach to the switch at {}", path.display())]
    System {
        /// Where the switch is.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// An endpoint that is attached, and does not know its peers yet.
#[derive(Debug)]
pub struct Attachment {
    place: Place,
    socket: OwnedFd,
    mode: LinkMode,
}

/// Where an endpoint attaches.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    path: PathBuf,
    name: String,
}

impl Attachment {
    /// Attaches to the switch at `path` under a name of its own there.
    pub fn new(path: &Path, name: &str) -> Result<Self, AttachError> {
        if !is_name(name) {
            return Err(AttachError::Name(name.to_owned()));
        }
        let place = Place {
            path: path.to_owned(),
            name: name.to_owned(),
        };
        let socket = place.connect()?;
        let mode = place.attach(&socket)?;
        Ok(Self {
            place,
            socket,
            mode,
        })
    }

    /// What the switch does with this endpoint's requests to its peers.
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// Starts the link's thread, which calls `handler` for the peers' changes and requests.
    pub fn start(self, handler: Arc<dyn PeerHandler>) -> Result<Link, AttachError> {
        let path = self.place.path.clone();
        Link::start(self.place, self.socket, handler)
            .map_err(|source| AttachError::System { path, source })
    }
}

impl Place {
    /// A connection to the switch there.
    pub(crate) fn connect(&self) -> Result<OwnedFd, AttachError> {
        connected(&self.path)
    }

    /// Says Hello and waits for the Welcome; what the switch does with requests to peers.
    pub(crate) fn attach(&self, socket: &OwnedFd) -> Result<LinkMode, AttachError> {
        let (path, name) = (&self.path, self.name.clone());
        let deadline = Instant::now() + SWITCH_TIME_OUT;
        let hello = Message::Hello {
            protocol: PROTOCOL,
            name: name.clone(),
        };
        socket::send_until(socket, &hello.encode(), deadline)
            .map_err(|errno| system(path, errno))?;
        match socket::receive_until(socket, &mut socket::space(), Some(deadline)) {
            Ok(Message::Welcome { mode, .. }) => Ok(mode),
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
    let socket = socket::new().map_err(|errno| system(path, errno))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| system(path, errno))?;
    match connect(&socket, &address) {
        Ok(()) => Ok(socket),
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn missing_switch_and_other_server_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let error = Attachment::new(&path, "disk0").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("start `peerbar-switch --socket-path"),
            "{text}"
        );
        let listener = UnixListener::bind(&path).unwrap();
        let error = Attachment::new(&path, "disk0").unwrap_err();
        assert!(matches!(error, AttachError::NoSwitch(_)), "{error}");
        drop(listener);
        let error = Attachment::new(&path, "disk0").unwrap_err();
        assert!(matches!(error, AttachError::NotThere(_)), "{error}");
    }

    #[test]
    fn name_that_does_not_fit_is_refused() {
        for name in ["", "a\tb", "\u{fc}", &"x".repeat(33)] {
            let error = Attachment::new(Path::new("/"), name).unwrap_err();
            assert!(matches!(error, AttachError::Name(_)), "{error}");
        }
    }
}
