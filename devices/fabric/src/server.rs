//! The daemon's loop: one thread, which never waits for one adapter.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use peerbar_host::socket_file::BindError;
use peerbar_host::socket_file::line_server::LineServerError;
use peerbar_host::socket_file::packets::{
    Listener, Message as _, Ready, ReceiveError, unguessable,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use crate::config::Config;
use crate::connection::AdapterConnection;
use crate::control;
use crate::fabric::{CutOff, PacketFabric, PortId, Reason};
use crate::impairments::Impairments;
use crate::limits::MAX_ADAPTERS;
use crate::message::{Incarnation, Message};

/// The most connections at once: all adapters, and as many that have not sent their Hello yet.
const MAX_CONNECTIONS: usize = 2 * MAX_ADAPTERS;

/// Messages of one adapter that are handled before the next one's turn.
const TURN: usize = 8;

/// The reason why a fabric cannot be served, or no longer.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Control(#[from] LineServerError),
    /// The operating system reported an error.
    #[error("fabric at {}: cannot go on", path.display())]
    System {
        /// Path of its socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Serves a fabric at `path` until `stop` becomes readable. Calls `ready` once adapters can connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    path: &Path,
    config: Config,
    stop: impl AsFd,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), ServeError> {
    let backlog = i32::try_from(MAX_ADAPTERS).unwrap_or(i32::MAX);
    let impairments = Impairments::new(config.seed, config.impairments);
    let impairments = Arc::new(Mutex::new(impairments));
    let control = config.control.as_deref();
    let _control = control
        .map(|path| control::start(path, impairments.clone(), config.record.clone()))
        .transpose()?;
    let mut server = Server {
        listener: Listener::open(path, backlog)?,
        fabric: PacketFabric::new(impairments, config.record, incarnation, most_descriptors()),
        connections: BTreeMap::new(),
        space: Message::space(),
    };
    let served = ready().and_then(|()| Ok(server.run(stop)?));
    served.map_err(|source| ServeError::System {
        path: path.to_owned(),
        source,
    })
}

/// Returns the number of descriptors that waiting packets may have: a quarter of those that this
/// process may open.
fn most_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit / 4).unwrap_or(usize::MAX)
    })
}

fn incarnation(number: u64) -> Incarnation {
    Incarnation(unguessable(number).max(1))
}

struct Server {
    listener: Listener,
    fabric: PacketFabric,
    connections: BTreeMap<PortId, AdapterConnection>,
    space: Vec<u8>,
}

impl Server {
    fn run(&mut self, stop: impl AsFd) -> Result<(), Errno> {
        loop {
            let ready = self.wait(stop.as_fd())?;
            if ready.stop {
                return Ok(());
            }
            for port in ready.readable {
                self.receive(port);
            }
            if ready.listener {
                self.admit()?;
            }
            self.fabric.expire(Instant::now());
            self.carry_out();
        }
    }

    fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Ready<PortId>, Errno> {
        let clients = self.connections.iter();
        let clients = clients.map(|(port, client)| (*port, client.as_fd(), client.is_full()));
        let deadlines = [self.fabric.deadline()];
        self.listener.wait(stop, None, clients, deadlines)
    }

    /// Receives some messages of one adapter.
    fn receive(&mut self, port: PortId) {
        for _ in 0..TURN {
            let Some(connection) = self.connections.get(&port) else {
                return;
            };
            match connection.receive(&mut self.space) {
                Ok(message) => self.fabric.receive(port, message, Instant::now()),
                Err(ReceiveError::Nothing) => return,
                Err(error @ ReceiveError::Starved) => log::debug!("{error}: it is dropped"),
                Err(error) => return self.lose(port, &error),
            }
        }
    }

    fn admit(&mut self) -> Result<(), Errno> {
        let is_full = self.connections.len() >= MAX_CONNECTIONS;
        if let Some(socket) = self.listener.accept(is_full)? {
            let port = self.fabric.connect(Instant::now());
            self.connections
                .insert(port, AdapterConnection::new(socket));
        }
        Ok(())
    }

    /// Sends the messages for each adapter, and closes the connections of adapters that are cut
    /// off.
    fn carry_out(&mut self) {
        let mut lost = Vec::new();
        for (port, connection) in &mut self.connections {
            if let Err(error) = connection.send_all(|| self.fabric.next(*port)) {
                lost.push((*port, error));
            }
        }
        for (port, error) in lost {
            self.lose(port, &error);
        }
        for CutOff { port, reason } in self.fabric.take_cut_off() {
            log::warn!("{}: port {port} is cut off: {reason}", self.name());
            let mut last = match reason {
                Reason::Refused(refusal) => Some(Message::Refused(refusal)),
                _ => None,
            };
            if let Some(mut connection) = self.connections.remove(&port) {
                // The adapter may have left.
                let _ = connection.send_all(|| last.take());
            }
        }
    }

    fn lose(&mut self, port: PortId, error: &dyn std::error::Error) {
        log::info!("{}: port {port} has left: {error}", self.name());
        self.connections.remove(&port);
        self.fabric.leave(port, Instant::now());
    }

    fn name(&self) -> std::path::Display<'_> {
        self.listener.path().display()
    }
}
