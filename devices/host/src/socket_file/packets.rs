//! Packets with descriptors over a `SOCK_SEQPACKET` socket (unix(7)), one for each message of a
//! protocol, and the listening socket of a single-threaded server.

pub mod contents;

use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, ReturnFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect,
    socket_with,
};
use thiserror::Error;

use crate::socket_file::descriptors::{self, Sockets, wait_until};
use crate::socket_file::{BindError, SocketFile, exhaustion};

/// A packet on the wire.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that are sent with it.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

/// The reason why no message was received; `E` is the reason why a packet is not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError<E: std::error::Error + 'static> {
    /// There is no message at the moment.
    #[error("nothing to receive")]
    Nothing,
    /// The other side has left.
    #[error("the connection is closed")]
    Closed,
    /// The packet is not a message.
    #[error(transparent)]
    Wire(E),
    /// A packet is lost, because the system has no room for its descriptors.
    #[error("no room for the descriptors of a packet")]
    Starved,
    /// A packet that is too long, or with too many descriptors.
    #[error("a packet or its descriptors are longer than any message")]
    TooLong,
    /// The operating system reported an error.
    #[error(transparent)]
    System(Errno),
}

/// Connects to the server at `path` without waiting. Fails with [`Errno::AGAIN`] if too many others
/// wait there, and with [`Errno::PROTOTYPE`] if the socket is of another kind.
pub fn connection(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns a number that no client can guess: a keyed hash of `number`. It is the same each time in
/// this process.
pub fn unguessable(number: u64) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(number)
}

/// Sends a packet as a whole or not at all, without waiting. Fails with [`Errno::AGAIN`] if the
/// socket buffer is full.
pub fn send(socket: impl AsFd, packet: &Packet) -> Result<(), Errno> {
    let rights: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
    let parts = [IoSlice::new(&packet.bytes)];
    retry_on_intr(|| descriptors::send(&socket, &parts, &rights)).map(|_| ())
}

/// Sends a packet, and waits until `deadline` for free space.
pub fn send_until(socket: impl AsFd, packet: &Packet, deadline: Instant) -> Result<(), Errno> {
    loop {
        match send(&socket, packet) {
            Err(Errno::AGAIN) => wait_until(&socket, PollFlags::OUT, Some(deadline))?,
            other => return other,
        }
    }
}

/// A message of a protocol, one in each packet.
pub trait Message: Sized {
    /// The reason why a packet is not a message.
    type Error: std::error::Error + 'static;
    /// The longest packet in bytes.
    const LONGEST: usize;

    /// Reads a packet. Descriptors that are not part of the message are closed.
    ///
    /// # Errors
    /// The packet is not a message.
    fn from_packet(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, Self::Error>;

    /// Returns space for any packet.
    fn space() -> Vec<u8> {
        vec![0; Self::LONGEST]
    }

    /// Receives a message, without waiting, into the [`Message::space`].
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn receive(socket: impl AsFd, space: &mut [u8]) -> Result<Self, ReceiveError<Self::Error>> {
        Self::receive_with(socket, space, Sockets::None)
    }

    /// Like [`Message::receive`], but the sender may pass `sockets`.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn receive_with(
        socket: impl AsFd,
        space: &mut [u8],
        sockets: Sockets,
    ) -> Result<Self, ReceiveError<Self::Error>> {
        let received = retry_on_intr(|| descriptors::receive_with(&socket, space, sockets));
        let received = received.map_err(|error| match error {
            Errno::AGAIN => ReceiveError::Nothing,
            Errno::CONNRESET | Errno::PIPE => ReceiveError::Closed,
            error => ReceiveError::System(error),
        })?;
        let lost = ReturnFlags::CTRUNC | ReturnFlags::TRUNC;
        let is_short = received.descriptors.len() < descriptors::MAX_DESCRIPTORS;
        if received.flags.contains(ReturnFlags::CTRUNC) && is_short {
            return Err(ReceiveError::Starved);
        }
        match space.get(..received.bytes) {
            Some([]) => Err(ReceiveError::Closed),
            Some(bytes) if !received.flags.intersects(lost) => {
                Self::from_packet(bytes, received.descriptors).map_err(ReceiveError::Wire)
            }
            _ => Err(ReceiveError::TooLong),
        }
    }

    /// Waits for a message until `deadline`, if there is one, and receives it like
    /// [`Message::receive`].
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn receive_until(
        socket: impl AsFd,
        space: &mut [u8],
        deadline: Option<Instant>,
    ) -> Result<Self, ReceiveError<Self::Error>> {
        loop {
            match Self::receive(&socket, space) {
                Err(ReceiveError::Nothing) => {
                    wait_until(&socket, PollFlags::IN, deadline).map_err(ReceiveError::System)?;
                }
                other => return other,
            }
        }
    }
}

/// The result of [`Listener::wait`]; `K` identifies a client to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready<K> {
    /// The server must stop.
    pub stop: bool,
    /// A client wants to connect.
    pub listener: bool,
    /// The other descriptor is readable, or closed.
    pub other: bool,
    /// Clients that have sent something, or left.
    pub readable: Vec<K>,
    /// Clients with waiting packets whose socket buffers have free space.
    pub writable: Vec<K>,
}

/// A socket that clients connect to, and its file. While the system lacks descriptors or memory,
/// clients are not accepted and wait.
#[derive(Debug)]
pub struct Listener {
    file: SocketFile,
    socket: OwnedFd,
    starved_until: Option<Instant>,
    is_reported: bool,
}

impl Listener {
    /// Makes the socket file, and replaces one that a dead server has left. `backlog` connections
    /// may wait.
    ///
    /// # Errors
    /// Those of [`SocketFile::make`].
    pub fn open(path: &Path, backlog: i32) -> Result<Self, BindError> {
        let (file, socket) = SocketFile::make(path, SocketType::SEQPACKET, backlog)?;
        Ok(Self {
            file,
            socket,
            starved_until: None,
            is_reported: false,
        })
    }

    /// Returns the path of the socket file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Waits for an event, at most until the earliest of `deadlines`. Each client is a key, its
    /// socket, and `true` if packets wait for it. `other` ends the wait, too.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait<'a, K: Copy>(
        &mut self,
        stop: BorrowedFd<'_>,
        other: Option<BorrowedFd<'_>>,
        clients: impl IntoIterator<Item = (K, BorrowedFd<'a>, bool)>,
        deadlines: impl IntoIterator<Item = Option<Instant>>,
    ) -> Result<Ready<K>, Errno> {
        let deadlines = deadlines.into_iter().chain([self.starved_until]);
        let deadline = deadlines.flatten().min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(|_| Errno::INVAL)?;
        let interest = match self.starved_until {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        let mut keys = Vec::new();
        let mut polled = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), interest),
        ];
        for (key, socket, is_full) in clients {
            keys.push(key);
            let out = if is_full {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            polled.push(PollFd::from_borrowed_fd(socket, PollFlags::IN | out));
        }
        polled.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut found = polled.iter().map(PollFd::revents);
        let mut next = || found.next().is_some_and(|flags| !flags.is_empty());
        let (stop, listener) = (next(), next());
        let found: Vec<PollFlags> = found.collect();
        let other = other.is_some() && found.last().is_some_and(|flags| !flags.is_empty());
        let found: Vec<(K, PollFlags)> = keys.into_iter().zip(found).collect();
        let those = |want: PollFlags| {
            let found = found.iter().filter(|(_, flags)| flags.intersects(want));
            found.map(|(key, _)| *key).collect()
        };
        self.starved_until.take_if(|until| *until <= Instant::now());
        Ok(Ready {
            stop,
            listener,
            other,
            readable: those(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            writable: those(PollFlags::OUT),
        })
    }

    /// Returns the next connection of the socket's owner, if there is one. Closes a connection
    /// beyond the server's limit (`is_full`). Returns `None` while the system lacks descriptors or
    /// memory, which is logged once.
    ///
    /// # Errors
    /// The system fails permanently.
    pub fn accept(&mut self, is_full: bool) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) if exhaustion::ERRORS.contains(&error) => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    let path = self.path().display();
                    log::warn!("{path}: further connections are refused for now: {error}");
                }
                self.starved_until = Some(Instant::now() + exhaustion::BACK_OFF);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.is_reported = false;
        match self.file.check_peer(&socket) {
            Ok(()) if is_full => {
                let path = self.path().display();
                log::debug!("{path}: a connection beyond the limit is closed");
                Ok(None)
            }
            Ok(()) => Ok(Some(socket)),
            Err(error) => {
                log::warn!("{error}");
                Ok(None)
            }
        }
    }
}
