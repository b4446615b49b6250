//! The daemon's loop: one thread, which never waits for one endpoint.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use peerbar_dma::{ChangeCount, MemoryError};
use peerbar_host::socket_file::BindError;
use peerbar_host::socket_file::exhaustion::BACK_OFF;
use peerbar_host::socket_file::packets::{
    Listener, Message as _, Ready, ReceiveError, unguessable,
};
use rustix::io::Errno;
use thiserror::Error;

use crate::bridge_socket::BridgeSocket;
use crate::config::Config;
use crate::connection::Connection;
use crate::limits::MAX_PORTS;
use crate::message::{Message, PortId};
use crate::switch::{Output, Switch};
use crate::window::Descriptor;

/// The most connections at once: all endpoints, and as many that have not sent their Hello yet.
const MAX_CONNECTIONS: usize = 2 * MAX_PORTS;

/// The reason why a switch cannot be served, or no longer.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There is not enough memory for its count of changes.
    #[error("switch at {}: cannot share its count of changes", path.display())]
    Memory {
        /// Path of its socket.
        path: PathBuf,
        /// The cause.
        source: MemoryError,
    },
    /// The operating system reported an error.
    #[error("switch at {}: cannot go on", path.display())]
    System {
        /// Path of its socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Serves a switch at `path` until `stop` becomes readable. Asks on `bridges`, if it is given, for
/// the windows that the ports forward. Calls `ready` once endpoints can connect.
pub fn serve(
    path: &Path,
    config: Config,
    bridges: Option<BridgeSocket>,
    stop: impl AsFd,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), ServeError> {
    let (changes, lent) = count(path)?;
    let mut server = Server {
        listener: Listener::open(path, i32::try_from(MAX_PORTS).unwrap_or(i32::MAX))?,
        switch: Switch::new(config, bridges.is_some(), lent, unguessable, Instant::now()),
        changes,
        bridges,
        connections: BTreeMap::new(),
        space: Message::space(),
    };
    let served = ready().and_then(|()| Ok(server.run(stop)?));
    served.map_err(|source| ServeError::System {
        path: path.to_owned(),
        source,
    })
}

/// Makes a count of changes, with its memory for endpoints.
fn count(path: &Path) -> Result<(ChangeCount, Descriptor), ServeError> {
    let changes = ChangeCount::new().map_err(|source| ServeError::Memory {
        path: path.to_owned(),
        source,
    })?;
    let lent = changes.file().try_clone();
    let lent = lent.map_err(|source| ServeError::System {
        path: path.to_owned(),
        source,
    })?;
    Ok((changes, Descriptor::new(lent)))
}

struct Server {
    listener: Listener,
    changes: ChangeCount,
    switch: Switch,
    bridges: Option<BridgeSocket>,
    connections: BTreeMap<PortId, Connection>,
    space: Vec<u8>,
}

impl Server {
    fn run(&mut self, stop: impl AsFd) -> Result<(), Errno> {
        loop {
            let ready = self.wait(stop.as_fd())?;
            if ready.stop {
                return Ok(());
            }
            for port in ready.writable {
                if let Some(Err(error)) = self.connections.get_mut(&port).map(Connection::flush) {
                    self.lose(port, &error);
                }
            }
            if ready.other {
                self.receive_bridge_windows();
            }
            for port in ready.readable {
                self.receive(port);
            }
            if ready.listener {
                self.admit()?;
            }
            self.try_again();
            self.switch.expire(Instant::now());
            self.carry_out();
        }
    }

    fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Ready<PortId>, Errno> {
        // At the moment, the system does not carry more descriptors for some of them.
        let is_starved = self.connections.values().any(Connection::is_starved);
        let again = is_starved.then(|| Instant::now() + BACK_OFF);
        let clients = self.connections.iter();
        let clients = clients.map(|(port, client)| (*port, client.as_fd(), client.is_full()));
        let deadlines = [self.switch.deadline(), again];
        let bridges = self.bridges.as_ref().map(AsFd::as_fd);
        self.listener.wait(stop, bridges, clients, deadlines)
    }

    fn receive_bridge_windows(&mut self) {
        match self.bridges.as_mut().map(BridgeSocket::receive) {
            Some(Ok(Some((number, windows)))) => {
                let now = Instant::now();
                self.switch.take_bridge_windows(number, windows, now);
            }
            Some(Err(error)) => self.lose_bridges(&error),
            Some(Ok(None)) | None => {}
        }
    }

    fn lose_bridges(&mut self, error: &io::Error) {
        let name = self.name();
        log::warn!(
            "{name}: the bridge socket has ended, so the windows of the bridges are no longer known, and peers reach through the switch only the windows that they reached before: {error}"
        );
        self.bridges = None;
        self.switch.end_bridge_windows();
    }

    /// Receives one message of one endpoint, so that no endpoint keeps the others waiting.
    fn receive(&mut self, port: PortId) {
        let Some(connection) = self.connections.get(&port) else {
            return;
        };
        match connection.receive(&mut self.space) {
            Ok(message) => self.switch.receive(port, message, Instant::now()),
            Err(ReceiveError::Nothing) => {}
            Err(error) => self.lose(port, &error),
        }
    }

    fn admit(&mut self) -> Result<(), Errno> {
        let is_full = self.connections.len() >= MAX_CONNECTIONS;
        if let Some(socket) = self.listener.accept(is_full)? {
            let port = self.switch.connect(Instant::now());
            self.connections.insert(port, Connection::new(socket));
        }
        Ok(())
    }

    /// Retries operations that the system did not allow before.
    fn try_again(&mut self) {
        let starved = self.connections.iter_mut();
        let starved = starved.filter(|(_, connection)| connection.is_starved());
        let failed = starved.filter_map(|(port, c)| Some((*port, c.flush().err()?)));
        for (port, error) in failed.collect::<Vec<_>>() {
            self.lose(port, &error);
        }
    }

    /// Executes the switch's outputs, and further outputs that result.
    fn carry_out(&mut self) {
        loop {
            let outputs = self.switch.take_outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                match output {
                    Output::Count(count) => {
                        // The memory belongs to this process.
                        if let Err(error) = self.changes.set(count) {
                            log::error!("{}: changes are not counted: {error}", self.name());
                        }
                    }
                    Output::Send(port, message) => {
                        let connection = self.connections.get_mut(&port);
                        if let Some(Err(error)) = connection.map(|c| c.send(&message)) {
                            self.lose(port, &error);
                        }
                    }
                    Output::Withdraw(port, id) => {
                        if let Some(connection) = self.connections.get_mut(&port) {
                            connection.withdraw(id);
                        }
                    }
                    Output::AskForBridgeWindows(number) => {
                        match self.bridges.as_ref().map(|bridges| bridges.ask(number)) {
                            Some(Err(error)) => self.lose_bridges(&error),
                            Some(Ok(false)) => self.switch.bridge_question_unsent(),
                            Some(Ok(true)) | None => {}
                        }
                    }
                    Output::CutOff(port, reason) => {
                        log::warn!("{}: port {port} is cut off: {reason}", self.name());
                        self.connections.remove(&port);
                    }
                }
            }
        }
    }

    fn lose(&mut self, port: PortId, error: &dyn std::error::Error) {
        log::info!("{}: port {port} has left: {error}", self.name());
        self.connections.remove(&port);
        self.switch.leave(port, Instant::now());
    }

    fn name(&self) -> std::path::Display<'_> {
        self.listener.path().display()
    }
}
