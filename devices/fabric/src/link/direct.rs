//! An adapter's ends of direct connections.
//!
//! A packet goes there if its peer has one with free space, otherwise to the fabric, which ends a
//! connection once it may not be used.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use peerbar_host::socket_file::descriptors::discard;
use peerbar_host::socket_file::packets::{self, Message as _, Packet, ReceiveError};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::gid::Gid;
use crate::message::{Body, Incarnation, Message};

/// Packets of one peer that are taken before the next one's turn.
const TURN: usize = 8;
/// Peers that have a turn at once. No more packets than all of theirs are taken at once.
const PEERS: usize = 4;

/// The connections of one adapter, in a separate epoll(7) instance.
#[derive(Debug)]
pub(crate) struct PeerConnections {
    events: Arc<OwnedFd>,
    /// The connections, by numbers that are never reused.
    connections: BTreeMap<u64, PeerConnection>,
    last_number: u64,
    space: Vec<u8>,
}

#[derive(Debug)]
struct PeerConnection {
    peer: Gid,
    incarnation: Incarnation,
    socket: Arc<OwnedFd>,
    events: Arc<OwnedFd>,
}

/// An event on a peer's connection.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet, in the form in which the fabric would bring it.
    Packet(Message),
    /// The connection has ended.
    Ended(Gid),
}

impl PeerConnections {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            events: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            connections: BTreeMap::new(),
            last_number: 0,
            space: Vec::new(),
        })
    }

    /// Returns a descriptor that is readable while there is something to receive.
    pub(crate) fn events(&self) -> Arc<OwnedFd> {
        self.events.clone()
    }

    /// Adds a connection with a peer, in place of an earlier one. Returns `false` if it cannot be
    /// used; then it ends.
    pub(crate) fn add(
        &mut self,
        peer: Gid,
        incarnation: Incarnation,
        socket: Arc<OwnedFd>,
    ) -> bool {
        self.remove(peer);
        self.last_number += 1;
        let connection = PeerConnection {
            peer,
            incarnation,
            socket,
            events: self.events.clone(),
        };
        let data = epoll::EventData::new_u64(self.last_number);
        let flags = epoll::EventFlags::IN;
        if let Err(error) = epoll::add(&self.events, &connection.socket, data, flags) {
            log::debug!("no direct connection with {peer}: {error}");
            return false;
        }
        if self.space.is_empty() {
            self.space = Message::space();
        }
        self.connections.insert(self.last_number, connection);
        true
    }

    /// Ends the connection with a peer.
    pub(crate) fn remove(&mut self, peer: Gid) {
        self.connections.retain(|_, it| it.peer != peer);
    }

    /// Ends all of them.
    pub(crate) fn clear(&mut self) {
        self.connections.clear();
    }

    /// Sends a packet by the connection with its peer. Returns `false` if it must go to the fabric.
    pub(crate) fn send(&self, message: &Message, packet: &Packet) -> bool {
        let Message::Packet {
            peer, incarnation, ..
        } = message
        else {
            return false;
        };
        let is_meant = |it: &&PeerConnection| {
            it.peer == *peer && [Incarnation::NONE, it.incarnation].contains(incarnation)
        };
        let connection = self.connections.values().find(is_meant);
        connection.is_some_and(|it| packets::send(&it.socket, packet).is_ok())
    }

    /// Receives some of the available packets, without waiting.
    pub(crate) fn receive(&mut self) -> Vec<Received> {
        let mut received = Vec::new();
        if self.connections.is_empty() {
            return received;
        }
        let mut space = [MaybeUninit::uninit(); PEERS];
        let now = Timespec::default();
        let ready = match epoll::wait(&self.events, &mut space, Some(&now)) {
            Ok((ready, _)) => ready,
            Err(error) => {
                log::debug!("direct connections: {error}");
                return received;
            }
        };
        for event in ready {
            let number = event.data.u64();
            let Some(connection) = self.connections.get(&number) else {
                continue;
            };
            if let Err(end) = connection.receive(&mut self.space, &mut received) {
                log::debug!("the direct connection with {} ends: {end}", connection.peer);
                received.push(Received::Ended(connection.peer));
                self.connections.remove(&number);
            }
        }
        received
    }
}

impl PeerConnection {
    /// Takes a turn's packets. Fails if the connection has ended, or if the peer sends anything
    /// else.
    fn receive(&self, space: &mut [u8], received: &mut Vec<Received>) -> Result<(), String> {
        for _ in 0..TURN {
            match Message::receive(&self.socket, space) {
                Ok(Message::Packet { body, .. }) => {
                    received.push(Received::Packet(self.packet(body)));
                }
                Ok(_) => return Err("the peer sends no packet".to_owned()),
                Err(ReceiveError::Nothing) => break,
                Err(error) if is_end(&error) => return Err(error.to_string()),
                Err(error) => log::debug!("a packet of {} is lost: {error}", self.peer),
            }
        }
        Ok(())
    }

    /// Returns the packet with that body, whose source is always this peer.
    fn packet(&self, body: Body) -> Message {
        Message::Packet {
            peer: self.peer,
            incarnation: self.incarnation,
            body,
        }
    }
}

impl Drop for PeerConnection {
    /// The fabric has a copy of an end, so a close alone neither ends the connection nor takes the
    /// socket out of the epoll instance.
    fn drop(&mut self) {
        // It may never have been added, and it may have ended.
        let _ = epoll::delete(&self.events, &self.socket);
        let _ = shutdown(&self.socket, Shutdown::Both);
        discard(&self.socket);
    }
}

/// Returns `true` if nothing more comes after this error. A packet for whose descriptors this
/// process has no room is lost alone, and sent again.
pub(super) fn is_end<E: std::error::Error>(error: &ReceiveError<E>) -> bool {
    !matches!(error, ReceiveError::Nothing | ReceiveError::Starved)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn connection_that_has_ended_makes_nothing_readable() {
        let mut direct = PeerConnections::new().unwrap();
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (near, far) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let _of_fabric = near.try_clone().unwrap();
        let peer = Gid([1; 16]);
        assert!(direct.add(peer, Incarnation(1), Arc::new(near)));
        let events = direct.events();
        let is_readable = || {
            let mut polled = [PollFd::new(&events, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(!is_readable());
        drop(far);
        assert!(is_readable());
        let received = direct.receive();
        assert!(matches!(received[..], [Received::Ended(of)] if of == peer));
        assert!(!is_readable());
    }

    #[test]
    fn lack_of_descriptors_does_not_end_the_link() {
        type Error = ReceiveError<std::io::Error>;
        for goes_on in [Error::Nothing, Error::Starved] {
            assert!(!is_end(&goes_on), "{goes_on}");
        }
        for end in [Error::Closed, Error::TooLong, Error::System(Errno::PIPE)] {
            assert!(is_end(&end), "{end}");
        }
    }
}
