//! An adapter that sends any message.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use peerbar_fabric::{Body, Gid, Incarnation, Message, PROTOCOL};
use peerbar_host::socket_file::descriptors::{Sockets, send, wait_until};
use peerbar_host::socket_file::packets::{Message as _, ReceiveError, connection};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

pub(crate) use peerbar_rig::TIME_OUT as LONG;

/// An adapter that does nothing by itself.
pub(crate) struct Adapter {
    pub(crate) socket: OwnedFd,
    pub(crate) incarnation: Incarnation,
}

impl Drop for Adapter {
    /// Hangs up at once. A process that another test is about to start has copies of all descriptors for a moment.
    fn drop(&mut self) {
        // Fails if the daemon has hung up.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Adapter {
    pub(crate) fn connect(path: &Path) -> Self {
        Self {
            socket: connection(path).unwrap(),
            incarnation: Incarnation::NONE,
        }
    }

    /// Connects and attaches.
    pub(crate) fn attach(path: &Path, number: u8) -> Self {
        let mut adapter = Self::connect(path);
        adapter.send(&hello(number));
        let Message::Welcome { incarnation } = adapter.receive() else {
            panic!("no welcome")
        };
        adapter.incarnation = incarnation;
        adapter
    }

    pub(crate) fn send(&self, message: &Message) {
        let packet = message.encode();
        let descriptors: Vec<BorrowedFd<'_>> =
            packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
        self.send_raw(&packet.bytes, &descriptors).unwrap();
    }

    /// Sends any bytes, and waits for free space. It fails once the fabric has hung up.
    pub(crate) fn send_raw(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        loop {
            match send(&self.socket, &[IoSlice::new(bytes)], descriptors) {
                Err(Errno::AGAIN) => {
                    let deadline = Instant::now() + LONG;
                    wait_until(&self.socket, PollFlags::OUT, Some(deadline)).unwrap();
                }
                other => return other.map(drop),
            }
        }
    }

    pub(crate) fn try_receive(
        &self,
        deadline: Instant,
    ) -> Result<Message, ReceiveError<peerbar_fabric::WireError>> {
        let mut space = Message::space();
        loop {
            // A direct connection comes as a socket.
            match Message::receive_with(&self.socket, &mut space, Sockets::Unix) {
                Err(ReceiveError::Nothing) => {
                    wait_until(&self.socket, PollFlags::IN, Some(deadline))
                        .map_err(ReceiveError::System)?;
                }
                received => return received,
            }
        }
    }

    /// Returns the next message, which must come.
    pub(crate) fn receive(&self) -> Message {
        self.try_receive(Instant::now() + LONG).unwrap()
    }

    /// Waits until the fabric hangs up, and ignores its messages. Returns `true` if it has.
    pub(crate) fn is_cut_off(&self) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            match self.try_receive(deadline) {
                Ok(_) => {}
                Err(ReceiveError::Closed) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Returns the holder of a GID, once all earlier packets are handled.
    pub(crate) fn resolve(&self, gid: Gid) -> Incarnation {
        self.send(&Message::Resolve { gid });
        loop {
            match self.receive() {
                Message::Peer {
                    gid: of,
                    incarnation,
                    ..
                } if of == gid => return incarnation,
                _ => {}
            }
        }
    }

    pub(crate) fn send_datagram(&self, to: Gid, bytes: usize) {
        self.send(&Message::Packet {
            peer: to,
            incarnation: Incarnation::NONE,
            body: Body::Datagram {
                data: vec![7; bytes].into(),
            },
        });
    }
}

pub(crate) fn gid(number: u8) -> Gid {
    Gid([number; 16])
}

pub(crate) fn hello(number: u8) -> Message {
    Message::Hello {
        protocol: PROTOCOL,
        name: format!("nic{number}"),
        gid: gid(number),
    }
}
