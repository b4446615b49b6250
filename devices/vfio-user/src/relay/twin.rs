//! The second socket for the server's commands (vfio-user, VERSION, `twin_socket`).

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use serde_json::Value;
use zerocopy::FromBytes;

use crate::wire::{Header, Version, command};

/// Returns the index of the second socket in the descriptors of a message, if it is a reply to
/// VERSION that offers one.
pub(super) fn index(header: &Header, payload: &[u8]) -> Option<usize> {
    let is_version = header.is_reply() && header.command.get() == command::VERSION;
    if !is_version || header.is_error() {
        return None;
    }
    let (_, data) = Version::ref_from_prefix(payload).ok()?;
    let text = data.split(|byte| *byte == 0).next()?;
    let data: Value = serde_json::from_slice(text).ok()?;
    let twin = data.get("capabilities")?.get("twin_socket")?;
    let is_supported = twin.get("supported").and_then(Value::as_bool) == Some(true);
    let index = twin.get("fd_index").and_then(Value::as_u64)?;
    usize::try_from(index).ok().filter(|_| is_supported)
}

/// Puts the end of another pair in place of the server's descriptor. Returns the other end of that
/// pair, which is the client's, and the server's socket. Returns `None` if it is no stream socket.
pub(super) fn interpose(descriptor: &mut OwnedFd) -> Option<(UnixStream, UnixStream)> {
    if socket_type(descriptor.as_fd()) != Ok(SocketType::STREAM) {
        return None;
    }
    let (ours, theirs) = UnixStream::pair().ok()?;
    let server = std::mem::replace(descriptor, theirs.into());
    Some((ours, UnixStream::from(server)))
}
