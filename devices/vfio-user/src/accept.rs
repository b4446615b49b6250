//! Connections of a listening socket.

use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};

/// Returns the next connection, or `None` if there is none, or if it has failed because of its
/// client.
pub(crate) fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}
