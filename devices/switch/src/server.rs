//! The daemon's loop: one thread, which never waits for one endpoint.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peerbar_socket_file::BindError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::config::Config;
use crate::connection::Connection;
use crate::limits::MAX_PORTS;
use crate::listener::Listener;
use crate::message::PortId;
use crate::socket::{self, ReceiveError};
use crate::switch::{Output, Switch};

/// The most connections at once: all endpoints, and as many that have not sent their Hello yet.
const MAX_CONNECTIONS: usize = 2 * MAX_PORTS;

/// Why a switch is not, or no longer, there.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refuses to go on.
    #[error("switch at {}: cannot go on", path.display())]
    System {
        /// Where its socket is.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Serves a switch at `path` until `stop` becomes readable. Calls `ready` once endpoints can connect.
pub fn serve(
    path: &Path,
    config: Config,
    stop: impl AsFd,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), ServeError> {
    let mut server = Server {
        listener: Listener::open(path)?,
        switch: Switch::new(config),
        connections: BTreeMap::new(),
        space: socket::space(),
    };
    let served = ready().and_then(|()| Ok(server.run(stop)?));
    served.map_err(|source| ServeError::System {
        path: path.to_owned(),
        source,
    })
}

struct Server {
    listener: Listener,
    switch: Switch,
    connections: BTreeMap<PortId, Connection>,
    space: Vec<u8>,
}

/// What poll(2) has found.
struct Ready {
    stop: bool,
    listener: bool,
    readable: Vec<PortId>,
    writable: Vec<PortId>,
}

impl Server {
    fn run(&mut self, stop: impl AsFd) -> Result<(), Errno> {
        loop {
            let ready = self.wait(&stop)?;
            if ready.stop {
                return Ok(());
            }
            for port in ready.writable {
                if let Some(Err(error)) = self.connections.get_mut(&port).map(Connection::flush) {
                    self.lose(port, &error);
                }
            }
            for port in ready.readable {
                self.receive(port);
            }
            if ready.listener {
                self.admit()?;
            }
            self.switch.expire(Instant::now());
            self.carry_out();
        }
    }

    fn wait(&self, stop: impl AsFd) -> Result<Ready, Errno> {
        let left = self.switch.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec::try_from(left)
        });
        let left = left.transpose().map_err(|_| Errno::INVAL)?;
        let mut polled = vec![
            PollFd::new(&stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        polled.extend(self.connections.values().map(|connection| {
            let out = if connection.is_full() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            PollFd::new(connection, PollFlags::IN | out)
        }));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut found = polled.iter().map(PollFd::revents);
        let mut next = || found.next().is_some_and(|flags| !flags.is_empty());
        let (stop, listener) = (next(), next());
        let found: Vec<(PortId, PollFlags)> = self.connections.keys().copied().zip(found).collect();
        let ports = |want: PollFlags| {
            let found = found.iter().filter(|(_, flags)| flags.intersects(want));
            found.map(|(port, _)| *port).collect()
        };
        Ok(Ready {
            stop,
            listener,
            writable: ports(PollFlags::OUT),
            readable: ports(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
        })
    }

    /// One message of one endpoint, so that none keeps the others waiting.
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
        let Some(socket) = self.listener.accept()? else {
            return Ok(());
        };
        if self.connections.len() >= MAX_CONNECTIONS {
            log::debug!("{}: a connection beyond the limit is closed", self.name());
            return Ok(());
        }
        let port = self.switch.connect(Instant::now());
        self.connections.insert(port, Connection::new(socket));
        Ok(())
    }

    /// Carries out the switch's outputs, and those that this leads to.
    fn carry_out(&mut self) {
        loop {
            let outputs = self.switch.take_outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                match output {
                    Output::Send(port, message) => {
                        let connection = self.connections.get_mut(&port);
                        if let Some(Err(error)) = connection.map(|c| c.send(&message)) {
                            self.lose(port, &error);
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
        self.switch.leave(port);
    }

    fn name(&self) -> std::path::Display<'_> {
        self.listener.path().display()
    }
}
