//! The fabric that joins the adapters of several guests.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::child::Killer;
use crate::events::{EventSource, Events};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::lab_error::LabError;
use crate::qemu::Sockets;
use crate::scenario::RdmaNetwork;
use crate::server_arguments::fabric_command;
use crate::servers::{self, Server};
use crate::signals::Signals;
use crate::socket_folder::SocketFolder;
use crate::verdict::Ending;

/// A running fabric. It is ended on drop.
pub(crate) struct GroupFabric {
    servers: Vec<Server>,
    socket: PathBuf,
    _sockets: SocketFolder,
}

impl GroupFabric {
    /// Starts it, with its log and its record in `folder`, and returns once adapters can attach.
    pub(crate) fn start(
        fabric: &RdmaNetwork,
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

    /// Returns the socket that adapters attach to.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Returns an object that kills it, for a check that asks for its death.
    pub(crate) fn expect_death(&mut self) -> anyhow::Result<Killer> {
        let server = self.servers.first_mut();
        server.context("the fabric has no server")?.expect_death()
    }

    /// Watches it during `work`, which must end once its stream closes.
    ///
    /// # Errors
    /// [`LabError::Ended`] if it ends before the work does, unless a check asked for its
    /// death. It then waits for the work.
    pub(crate) fn run_beside<T: Send>(
        &mut self,
        work: impl FnOnce(UnixStream) -> T + Send,
    ) -> Result<T, LabError> {
        let pair = || UnixStream::pair().context("cannot make a socket pair");
        let (done, tells_done) = pair()?;
        let (stop, received_stop) = pair()?;
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let _tells_done = tells_done;
                work(received_stop)
            });
            let died = self.dies_before(&done);
            drop(stop);
            let result = worker.join().map_err(|_| anyhow!("the work panicked"))?;
            match died? {
                Some(message) => Err(LabError::Ended(Ending::ServerDied(message))),
                None => Ok(result),
            }
        })
    }

    /// Returns its exit message if it ends, unasked, before `done` closes.
    fn dies_before(&mut self, done: &UnixStream) -> anyhow::Result<Option<String>> {
        let server = self.servers.first_mut();
        let server = server.context("the fabric has no server")?;
        let mut ends = vec![PollFd::new(done, PollFlags::IN)];
        if !server.lost {
            let pidfd = server.child.pidfd();
            ends.push(PollFd::from_borrowed_fd(pidfd, PollFlags::IN));
        }
        retry_on_intr(|| poll(&mut ends, None)).context("cannot wait for the fabric")?;
        let is_done = ends.first().is_some_and(|end| !end.revents().is_empty());
        if is_done {
            return Ok(None);
        }
        let status = server.child.ended()?;
        let status = status.context("a fabric that ended and did not")?;
        Ok(Some(servers::exit_message(server, status)))
    }

    /// Ends it. Returns its exit message if it had ended before, or fails.
    pub(crate) fn stop(mut self) -> anyhow::Result<Option<String>> {
        servers::stop(&mut self.servers)
    }
}
