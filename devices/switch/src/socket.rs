//! Packets with descriptors over a `SOCK_SEQPACKET` socket (unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socket_with,
};
use thiserror::Error;

use crate::limits::{MAX_DESCRIPTORS, MAX_PACKET};
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
    let descriptors: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
    let mut space_for_rights = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space_for_rights);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(&socket, &[IoSlice::new(&packet.bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Sends a packet, and waits until `deadline` for free space.
pub(crate) fn send_until(
    socket: impl AsFd,
    packet: &Packet,
    deadline: Instant,
) -> Result<(), Errno> {
    loop {
        match send(&socket, packet) {
            Err(Errno::AGAIN) => wait(&socket, PollFlags::OUT, Some(deadline))?,
            other => return other,
        }
    }
}

/// Receives a message, without waiting. `space` has [`MAX_PACKET`] bytes.
pub(crate) fn receive(socket: impl AsFd, space: &mut [u8]) -> Result<Message, ReceiveError> {
    let mut space_for_rights = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space_for_rights);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(space)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ReceiveError::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(ReceiveError::Closed),
            Err(error) => return Err(ReceiveError::System(error)),
            Ok(received) => break received,
        }
    };
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let lost = ReturnFlags::CTRUNC | ReturnFlags::TRUNC;
    match space.get(..received.bytes) {
        Some([]) => Err(ReceiveError::Closed),
        Some(bytes) if !received.flags.intersects(lost) => Ok(Message::decode(bytes, descriptors)?),
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
                wait(&socket, PollFlags::IN, deadline).map_err(ReceiveError::System)?;
            }
            other => return other,
        }
    }
}

/// Space for any packet.
pub(crate) fn space() -> Vec<u8> {
    vec![0; MAX_PACKET]
}

/// Waits until the socket is ready; [`Errno::TIMEDOUT`] if it is not by `deadline`.
fn wait(socket: impl AsFd, what: PollFlags, deadline: Option<Instant>) -> Result<(), Errno> {
    let left = deadline
        .map(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())))
        .transpose()
        .map_err(|_| Errno::INVAL)?;
    let mut polled = [PollFd::new(&socket, what)];
    match poll(&mut polled, left.as_ref()) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
