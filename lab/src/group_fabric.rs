//! The fabric that joins the adapters of several guests.

use std::path::PathBuf;

use anyhow::Context;

use crate::child::Killer;
use crate::events::{EventSource, Events};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::qemu::Sockets;
use crate::scenario::Fabric;
use crate::server_arguments::fabric_command;
use crate::servers::{self, Server};
use crate::signals::Signals;
use crate::socket_folder::SocketFolder;

/// A running fabric. Dropped, it is ended.
pub(crate) struct GroupFabric {
    servers: Vec<Server>,
    socket: PathBuf,
    _sockets: SocketFolder,
}

impl GroupFabric {
    /// Starts it, with its log and its record in `folder`, and returns once adapters can attach.
    pub(crate) fn start(
        fabric: &Fabric,
        folder: &Folder,
        signals: &Signals,
    ) -> Result<Self, Failure> {
        let temporary = SocketFolder::create()?;
        let sockets = Sockets::in_folder(temporary.path());
        let mut events = Events::new(signals);
        let mut server = servers::spawn(&fabric_command(fabric, &sockets), folder)?;
        let output = server.child.take_stdout();
        let output = output.context("the fabric has no standard output")?;
        events.add_bytes(EventSource::Server(0), output);
        let mut servers = vec![server];
        servers::wait_until_ready(&mut events, &mut servers, 0)?;
        for server in &mut servers {
            server.link(&sockets.fabric_control(), folder)?;
        }
        Ok(Self {
            servers,
            socket: sockets.fabric(),
            _sockets: temporary,
        })
    }

    /// The socket that adapters attach to.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// What kills it, because a check asks for its death.
    pub(crate) fn doom(&mut self) -> anyhow::Result<Killer> {
        let server = self.servers.first_mut();
        server.context("the fabric has no server")?.doom()
    }

    /// Ends it; its exit message if it had ended before, or fails.
    pub(crate) fn stop(mut self) -> anyhow::Result<Option<String>> {
        servers::stop(&mut self.servers)
    }
}
