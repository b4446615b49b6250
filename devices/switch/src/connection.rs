//! One endpoint's connection, on the side of the switch.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use peerbar_host::socket_file::descriptors::discard;
use peerbar_host::socket_file::packets::{self, Message as _, Packet, ReceiveError};
use rustix::io::Errno;

use crate::limits::MAX_REQUESTS;
use crate::message::Message;
use crate::packet::WireError;
use crate::requests::RequestId;

/// The most packets that wait until an endpoint reads them and that are not peers' requests. The
/// endpoint causes all of them itself, except one change of a peer with the timing of its link, and
/// the count of changes.
const MAX_QUEUED: usize = 2 * MAX_REQUESTS;

/// A connection, and the packets that wait for free space in its socket buffer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    queue: VecDeque<Packet>,
    /// Peers' requests, which are sent last. Each peer may have a limited number of them.
    requests: VecDeque<(RequestId, Packet)>,
    /// The system refuses to carry more descriptors at the moment.
    is_starved: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        discard(&self.socket);
    }
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            queue: VecDeque::new(),
            requests: VecDeque::new(),
            is_starved: false,
        }
    }

    /// Sends a message as soon as the socket buffer has free space. Fails if the endpoint is gone
    /// or does not read the answers to its own requests.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), Errno> {
        let packet = message.encode();
        match message {
            Message::Read { peer, tag, .. } | Message::Write { peer, tag, .. } => {
                self.requests.push_back(((*peer, *tag), packet));
            }
            _ if self.queue.len() >= MAX_QUEUED => return Err(Errno::NOBUFS),
            _ => self.queue.push_back(packet),
        }
        self.flush()
    }

    /// Drops an unsent request whose requester no longer waits.
    pub(crate) fn withdraw(&mut self, id: RequestId) {
        self.requests.retain(|(other, _)| *other != id);
    }

    /// Sends until the socket buffer is full.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        self.is_starved = false;
        while let Some(packet) = self.next() {
            match packets::send(&self.socket, packet) {
                Ok(()) if self.queue.pop_front().is_some() => {}
                Ok(()) => drop(self.requests.pop_front()),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.is_starved = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn next(&self) -> Option<&Packet> {
        let request = self.requests.front().map(|(_, packet)| packet);
        self.queue.front().or(request)
    }

    /// Returns `true` if packets wait for free space.
    pub(crate) fn is_full(&self) -> bool {
        !self.is_starved && self.next().is_some()
    }

    /// Returns `true` if packets wait for the system.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Receives a message, without waiting.
    pub(crate) fn receive(&self, space: &mut [u8]) -> Result<Message, ReceiveError<WireError>> {
        Message::receive(&self.socket, space)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
