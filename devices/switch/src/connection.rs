//! One endpoint's connection, as the switch holds it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::message::Message;
use crate::packet::Packet;
use crate::socket::{self, ReceiveError};

/// The most packets that wait for an endpoint to read: more than all others can cause within its time-out.
const MAX_QUEUED: usize = 512;

/// A connection, and the packets that wait for free space in its socket buffer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    queue: VecDeque<Packet>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            queue: VecDeque::new(),
        }
    }

    /// Sends a message as soon as the socket buffer has free space. Fails when the endpoint is gone or has not read for
    /// too long.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), Errno> {
        if self.queue.len() >= MAX_QUEUED {
            return Err(Errno::NOBUFS);
        }
        self.queue.push_back(message.encode());
        self.flush()
    }

    /// Sends until the socket buffer is full.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while let Some(packet) = self.queue.front() {
            match socket::send(&self.socket, packet) {
                Ok(()) => self.queue.pop_front(),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Whether packets wait for free space.
    pub(crate) fn is_full(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Receives a message, without waiting.
    pub(crate) fn receive(&self, space: &mut [u8]) -> Result<Message, ReceiveError> {
        socket::receive(&self.socket, space)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
