//! One adapter's connection, on the side of the fabric.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use peerbar_host::socket_file::descriptors::discard;
use peerbar_host::socket_file::packets::{self, Message as _, Packet, ReceiveError};
use rustix::io::Errno;

use crate::codec::WireError;
use crate::message::Message;

/// A connection, and the packet that waits for free space in its socket buffer.
#[derive(Debug)]
pub(crate) struct AdapterConnection {
    socket: OwnedFd,
    waiting: Option<Packet>,
}

impl Drop for AdapterConnection {
    fn drop(&mut self) {
        discard(&self.socket);
    }
}

impl AdapterConnection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            waiting: None,
        }
    }

    /// Sends messages until there are no more, or the socket buffer is full. Drops packets for
    /// which the system has no memory or descriptors, which a fabric may do. Fails if the adapter
    /// is gone.
    pub(crate) fn send_all(
        &mut self,
        mut next: impl FnMut() -> Option<Message>,
    ) -> Result<(), Errno> {
        loop {
            let packet = self.waiting.take();
            let Some(packet) = packet.or_else(|| next().map(|message| message.encode())) else {
                return Ok(());
            };
            match packets::send(&self.socket, &packet) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    self.waiting = Some(packet);
                    return Ok(());
                }
                Err(error @ (Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)) => {
                    log::debug!("a packet is dropped: {error}");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns `true` if a packet waits for free space.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.is_some()
    }

    /// Receives a message, without waiting.
    pub(crate) fn receive(&self, space: &mut [u8]) -> Result<Message, ReceiveError<WireError>> {
        Message::receive(&self.socket, space)
    }
}

impl AsFd for AdapterConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
