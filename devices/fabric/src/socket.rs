//! Messages over the socket between an adapter and its fabric.

use std::os::fd::AsFd;
use std::time::Instant;

use peerbar_socket_file::packets;

use crate::codec::WireError;
use crate::limits::MAX_PACKET;
use crate::message::Message;

/// Why no message came.
pub(crate) type ReceiveError = packets::ReceiveError<WireError>;

/// Receives a message, without waiting. `space` has [`MAX_PACKET`] bytes.
pub(crate) fn receive(socket: impl AsFd, space: &mut [u8]) -> Result<Message, ReceiveError> {
    packets::receive(socket, space, Message::decode)
}

/// Waits for a message until `deadline`, and receives it.
pub(crate) fn receive_until(
    socket: impl AsFd,
    space: &mut [u8],
    deadline: Instant,
) -> Result<Message, ReceiveError> {
    packets::receive_until(socket, space, Some(deadline), Message::decode)
}

/// Space for any packet.
pub(crate) fn space() -> Vec<u8> {
    vec![0; MAX_PACKET]
}
