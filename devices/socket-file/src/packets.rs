//! Packets with descriptors over a `SOCK_SEQPACKET` socket (unix(7)), each one message of a protocol, and the listening socket of a
//! server that has one thread.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, ReturnFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect,
    socket_with,
};
use thiserror::Error;

use crate::descriptors::{self, wait_until};
use crate::{BindError, PeerError, SocketFile};

/// How long a server waits when the system lacks descriptors or memory, before it accepts again.
const BACK_OFF: Duration = Duration::from_millis(100);

/// A packet on the wire.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that go with it.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

/// Why no message came; `E` is why a packet is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError<E: std::error::Error + 'static> {
    /// There is none at the moment.
    #[error("nothing to receive")]
    Nothing,
    /// The other side has left.
    #[error("the connection is closed")]
    Closed,
    /// A packet is no message.
    #[error(transparent)]
    Wire(E),
    /// A packet that is too long, or with too many descriptors.
    #[error("a packet or its descriptors are longer than any message")]
    TooLong,
    /// The system refuses.
    #[error(transparent)]
    System(Errno),
}

/// A connection to the server at `path`, which never waits. [`Errno::AGAIN`] if too many others wait there,
/// [`Errno::PROTOTYPE`] if the socket is of another kind.
pub fn connection(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends a packet, whole or not at all, without waiting: [`Errno::AGAIN`] if the socket buffer is full.
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

/// Receives a packet, without waiting, and has `decode` read it. `space` has as many bytes as the longest message.
pub fn receive<T, E: std::error::Error>(
    socket: impl AsFd,
    space: &mut [u8],
    decode: impl FnOnce(&[u8], Vec<OwnedFd>) -> Result<T, E>,
) -> Result<T, ReceiveError<E>> {
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
            decode(bytes, received.descriptors).map_err(ReceiveError::Wire)
        }
        _ => Err(ReceiveError::TooLong),
    }
}

/// Waits for a packet until `deadline`, if there is one, and receives it as [`receive`] does.
pub fn receive_until<T, E: std::error::Error>(
    socket: impl AsFd,
    space: &mut [u8],
    deadline: Option<Instant>,
    decode: impl Fn(&[u8], Vec<OwnedFd>) -> Result<T, E>,
) -> Result<T, ReceiveError<E>> {
    loop {
        match receive(&socket, space, &decode) {
            Err(ReceiveError::Nothing) => {
                wait_until(&socket, PollFlags::IN, deadline).map_err(ReceiveError::System)?;
            }
            other => return other,
        }
    }
}

/// What [`Listener::accept`] found.
#[derive(Debug)]
pub enum Accepted {
    /// A connection of the socket's owner.
    Connection(OwnedFd),
    /// One that is refused, and closed.
    Refused(PeerError),
    /// None, or none yet.
    Nothing,
    /// The system lacks descriptors or memory. Reported once until a connection is accepted.
    Starved(Errno),
}

/// A socket that clients connect to, and its file. While the system lacks descriptors or memory, nobody is accepted and they wait.
#[derive(Debug)]
pub struct Listener {
    file: SocketFile,
    socket: OwnedFd,
    starved_until: Option<Instant>,
    is_reported: bool,
}

impl Listener {
    /// Makes the socket file, in place of one that a dead server has left; `backlog` connections may wait.
    ///
    /// # Errors
    /// As [`SocketFile::make`].
    pub fn open(path: &Path, backlog: i32) -> Result<Self, BindError> {
        let (file, socket) = SocketFile::make(path, SocketType::SEQPACKET, backlog)?;
        Ok(Self {
            file,
            socket,
            starved_until: None,
            is_reported: false,
        })
    }

    /// Path of the socket file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What to poll the socket for.
    pub fn interest(&self) -> PollFlags {
        match self.starved_until {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        }
    }

    /// When [`Listener::try_again`] will have something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.starved_until
    }

    /// Accepts again what the system did not allow before, once it is time.
    pub fn try_again(&mut self, now: Instant) {
        self.starved_until.take_if(|until| *until <= now);
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// The system refuses for good.
    pub fn accept(&mut self) -> Result<Accepted, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match accept_with(&self.socket, flags) {
            Ok(socket) => {
                self.is_reported = false;
                Ok(match self.file.check_peer(&socket) {
                    Ok(()) => Accepted::Connection(socket),
                    Err(error) => Accepted::Refused(error),
                })
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(Accepted::Nothing),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                self.starved_until = Some(Instant::now() + BACK_OFF);
                match std::mem::replace(&mut self.is_reported, true) {
                    false => Ok(Accepted::Starved(error)),
                    true => Ok(Accepted::Nothing),
                }
            }
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
