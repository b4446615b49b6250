//! Connections of a listening socket.

use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};

/// The next connection, if there is one. One that has failed for a reason of its client is none.
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
