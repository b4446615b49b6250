//! The attachment of an endpoint to its switch.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::link::{Link, PeerHandler};
use crate::link_mode::LinkMode;
use crate::packet::is_name;
use crate::switch_address::{AttachError, SwitchAddress};
use crate::window::Descriptor;

/// An endpoint that is attached, and does not know its peers yet.
#[derive(Debug)]
pub struct Attachment {
    address: SwitchAddress,
    socket: OwnedFd,
    mode: LinkMode,
    changes: Descriptor,
}

impl Attachment {
    /// Attaches to the switch at `path` under a name that is unique there.
    pub fn new(path: &Path, name: &str) -> Result<Self, AttachError> {
        if !is_name(name) {
            return Err(AttachError::Name(name.to_owned()));
        }
        let address = SwitchAddress {
            path: path.to_owned(),
            name: name.to_owned(),
        };
        let socket = address.connect()?;
        let (mode, changes) = address.attach(&socket)?;
        Ok(Self {
            address,
            socket,
            mode,
            changes,
        })
    }

    /// Returns the switch's treatment of this endpoint's requests to its peers.
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// Starts the link's thread, which calls `handler` for the peers' changes and requests.
    pub fn start(self, handler: Arc<dyn PeerHandler>) -> Result<Link, AttachError> {
        handler
            .attached(&self.changes)
            .map_err(AttachError::Changes)?;
        let path = self.address.path.clone();
        Link::start(self.address, self.socket, handler)
            .map_err(|source| AttachError::System { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

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
        // A process that another test starts keeps a copy of the socket for a moment.
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
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
