//! Packets with descriptors over a `SOCK_SEQPACKET` socket (unix(7)).

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use peerbar_socket_file::descriptors::{self, wait_until};
use rustix::event::PollFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, ReturnFlags, SocketFlags, SocketType, socket_with};
use thiserror::Error;

use crate::limits::MAX_PACKET;
use crate::message::Message;
use crate::packet::{Packet, WireError};

/// Why no message came.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ReceiveError {
    /// There is none at the moment.
    #[error("nothing to receive")]
    Nothing,
    /// The other side has left.
    #[error("the connection is closed")]
    Closed,
    /// A packet is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A packet that is too long, or with too many descriptors.
    #[error("a packet or its descriptors are longer than any message")]
    TooLong,
    /// The system refuses.
    #[error(transparent)]
    System(Errno),
}

/// A new socket that never waits.
pub(crate) fn new() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a packet, whole or not at all, without waiting: [`Errno::AGAIN`] if the socket buffer is full.
pub(crate) fn send(socket: impl AsFd, packet: &Packet) -> Result<(), Errno> {
    let rights: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
    let parts = [IoSlice::new(&packet.bytes)];
    retry_on_intr(|| descriptors::send(&socket, &parts, &rights)).map(|_| ())
}

/// Sends a packet, and waits until `deadline` for free space.
pub(crate) fn send_until(
    socket: impl AsFd,
    packet: &Packet,
    deadline: Instant,
) -> Result<(), Errno> {
    loop {
        match send(&socket, packet) {
            Err(Errno::AGAIN) => wait_until(&socket, PollFlags::OUT, Some(deadline))?,
            other => return other,
        }
    }
}

/// Receives a message, without waiting. `space` has [`MAX_PACKET`] bytes.
pub(crate) fn receive(socket: impl AsFd, space: &mut [u8]) -> Result<Message, ReceiveError> {
    let received = retry_on_intr(|| descriptors::receive(&socket, space));
    let received = received.map_err(|error| match error {
        Errno::AGAIN => ReceiveError::Nothing,
        Errno::CONNRESET | Errno::PIPE => ReceiveError::Closed,
        error => ReceiveError::System(error),
    })?;
    let lost = ReturnFlags::CTRUNC | ReturnFlags::TRUNC;
    match space.get(..received.bytes) {
        Some([]) => Err(ReceiveError::Closed),
        Some(bytes) if !received.flags.intersects(lost) => {
            Ok(Message::decode(bytes, received.descriptors)?)
        }
        _ => Err(ReceiveError::TooLong),
    }
}

/// Waits for a message until `deadline`, if there is one, and receives it.
pub(crate) fn receive_until(
    socket: impl AsFd,
    space: &mut [u8],
    deadline: Option<Instant>,
) -> Result<Message, ReceiveError> {
    loop {
        match receive(&socket, space) {
            Err(ReceiveError::Nothing) => {
                wait_until(&socket, PollFlags::IN, deadline).map_err(ReceiveError::System)?;
            }
            other => return other,
        }
    }
}

/// Space for any packet.
pub(crate) fn space() -> Vec<u8> {
    vec![0; MAX_PACKET]
}
