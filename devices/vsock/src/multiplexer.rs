//! All connections of a guest, and the programs of the host behind them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use peerbar_host::socket_file::{PeerError, SocketFile};
use rustix::event::{Timespec, epoll};

use crate::connection::{Over, VsockConnection};
use crate::handshake::{Greeting, GreetingStep};
use crate::header::{PacketKind, Ports, VsockHeader};

/// Connections and greetings at once, each.
pub(crate) const LIMIT: usize = 256;
/// Resets that wait until the guest takes them. Further packets that need a reset get no answer.
const RESETS: usize = 256;
/// The first port of the host; those below 1024 are privileged (vsock(7)).
const FIRST_PORT: u32 = 1024;
/// Event of the listener; those of the connections are ports of the host, which fit 32 bits.
const LISTENER: u64 = 1 << 32;

/// Decides whether a connected program is served.
pub(crate) trait PeerCheck: std::fmt::Debug + Send + Sync {
    /// Refuses a program of another user.
    fn check(&self, program: &UnixStream) -> Result<(), PeerError>;
}

impl PeerCheck for SocketFile {
    fn check(&self, program: &UnixStream) -> Result<(), PeerError> {
        self.check_peer(program)
    }
}

/// A peer at a port of the host: first its greeting, then its connection.
#[derive(Debug)]
enum Peer {
    Greeting(Greeting),
    Connection(VsockConnection, Ports),
}

/// The connections of one guest. Each is identified by a port of the host.
#[derive(Debug)]
pub(crate) struct Multiplexer {
    listener: UnixListener,
    check: Arc<dyn PeerCheck>,
    events: OwnedFd,
    peers: BTreeMap<u32, Peer>,
    /// Greetings in the order in which they came. An unfinished one gives way to a newer one.
    greetings: VecDeque<u32>,
    /// Connections that may have a packet for the guest, each once, served in turn.
    ready: VecDeque<u32>,
    resets: VecDeque<Ports>,
    next_port: u32,
}

impl Multiplexer {
    /// Makes a multiplexer for the programs of the host that connect to `listener`, which must be
    /// nonblocking, and that pass `check`.
    ///
    /// # Errors
    /// Those of epoll(7).
    pub(crate) fn new(listener: UnixListener, check: Arc<dyn PeerCheck>) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&events, &listener, data, epoll::EventFlags::IN)?;
        Ok(Self {
            listener,
            check,
            events,
            peers: BTreeMap::new(),
            greetings: VecDeque::new(),
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            next_port: FIRST_PORT,
        })
    }

    /// Ends all connections that the guest knows of, because its driver starts again.
    pub(crate) fn reset(&mut self) {
        self.peers.retain(|_, peer| match peer {
            Peer::Greeting(_) => true,
            Peer::Connection(connection, _) => connection.is_unasked(),
        });
        self.ready.retain(|port| self.peers.contains_key(port));
        self.resets.clear();
    }

    /// Handles the events of the sockets.
    pub(crate) fn take_events(&mut self) {
        let mut events = Vec::with_capacity(64);
        let now = Timespec::default();
        let spare = rustix::buffer::spare_capacity(&mut events);
        if let Err(error) = epoll::wait(&self.events, spare, Some(&now)) {
            log::debug!("cannot wait for sockets: {error}");
        }
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match u32::try_from(data) {
                Ok(port) => self.socket_changed(port, flags),
                Err(_) => self.accept(),
            }
        }
    }

    fn socket_changed(&mut self, port: u32, flags: epoll::EventFlags) {
        match self.peers.remove(&port) {
            Some(Peer::Greeting(greeting)) => self.greeted(port, greeting),
            Some(Peer::Connection(mut connection, ports)) => {
                let gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
                let outcome = connection.socket_changed(gone);
                self.keep(port, connection, ports, outcome);
            }
            None => {}
        }
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return log::debug!("cannot accept a program: {error}"),
        };
        if let Err(error) = self.check.check(&stream) {
            return log::warn!("{error}");
        }
        if self.greetings.len() >= LIMIT {
            if let Some(oldest) = self.greetings.pop_front() {
                self.peers.remove(&oldest);
            }
        }
        let port = self.free_port();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(port));
        let added = stream
            .set_nonblocking(true)
            .and_then(|()| Ok(epoll::add(&self.events, &stream, data, flags)?));
        match added {
            Ok(()) => {
                self.greetings.push_back(port);
                self.greeted(port, Greeting::new(stream));
            }
            Err(error) => log::debug!("cannot take a program: {error}"),
        }
    }

    /// Returns a free port: there are more ports than peers.
    fn free_port(&mut self) -> u32 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            // The last port means any (vsock(7), VMADDR_PORT_ANY).
            if port != u32::MAX && !self.peers.contains_key(&port) {
                return port;
            }
        }
    }

    /// Continues to read a greeting.
    fn greeted(&mut self, port: u32, greeting: Greeting) {
        let step = match greeting.read_on() {
            GreetingStep::Unfinished(greeting) => {
                self.peers.insert(port, Peer::Greeting(greeting));
                return;
            }
            step => step,
        };
        self.greetings.retain(|waiting| *waiting != port);
        match step {
            GreetingStep::Port(stream, guest) => self.connect(port, guest, stream),
            _ => log::debug!("a program of the host asks for no port of the guest"),
        }
    }

    fn connect(&mut self, port: u32, guest: u32, stream: UnixStream) {
        if self.peers.len().saturating_sub(self.greetings.len()) >= LIMIT {
            log::warn!("{LIMIT} connections are open; one more is refused");
            return;
        }
        let ports = Ports { guest, host: port };
        let connection = VsockConnection::new(ports, stream);
        self.keep(port, connection, ports, Ok(()));
    }

    /// Keeps a connection unless it is over.
    fn keep(
        &mut self,
        port: u32,
        connection: VsockConnection,
        ports: Ports,
        outcome: Result<(), Over>,
    ) {
        match outcome {
            Ok(()) => {
                if connection.has_packet() && !self.ready.contains(&port) {
                    self.ready.push_back(port);
                }
                self.peers.insert(port, Peer::Connection(connection, ports));
            }
            Err(Over::Reset) => self.refuse(ports),
            Err(Over::Silent) => {}
        }
    }

    /// Tells the guest that there is no connection `ports`.
    pub(crate) fn refuse(&mut self, ports: Ports) {
        if self.resets.len() < RESETS {
            self.resets.push_back(ports);
        }
    }

    /// Takes a packet of the guest with its data.
    pub(crate) fn receive(&mut self, header: &VsockHeader, data: &[u8]) {
        let port = header.ports.host;
        match self.peers.remove(&port) {
            Some(Peer::Connection(mut connection, ports)) if ports == header.ports => {
                let outcome = connection.receive(header, data);
                self.keep(port, connection, ports, outcome);
            }
            other => {
                if let Some(peer) = other {
                    self.peers.insert(port, peer);
                }
                // Two sides that answer each other's resets with resets would never stop.
                if header.kind != PacketKind::Reset {
                    self.refuse(header.ports);
                }
            }
        }
    }

    /// Returns `true` if there may be a packet for the guest.
    pub(crate) fn has_packet(&self) -> bool {
        !self.resets.is_empty() || !self.ready.is_empty()
    }

    /// Returns the next packet for the guest, if there is one; its data is put at the start of
    /// `space`.
    pub(crate) fn next_packet(&mut self, space: &mut [u8]) -> Option<VsockHeader> {
        loop {
            if let Some(ports) = self.resets.pop_front() {
                return Some(VsockHeader::reset(ports));
            }
            let port = self.ready.pop_front()?;
            let Some(Peer::Connection(mut connection, ports)) = self.peers.remove(&port) else {
                continue;
            };
            match connection.next_packet(space) {
                Ok(packet) => {
                    // The guest need not answer the end of a connection.
                    let outcome = match connection.is_over() {
                        true => Err(Over::Silent),
                        false => Ok(()),
                    };
                    self.keep(port, connection, ports, outcome);
                    if packet.is_some() {
                        return packet;
                    }
                }
                Err(over) => self.keep(port, connection, ports, Err(over)),
            }
        }
    }
}

impl AsFd for Multiplexer {
    /// Returns a descriptor that is readable while [`Multiplexer::take_events`] has events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests;
