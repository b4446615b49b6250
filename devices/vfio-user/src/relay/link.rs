//! A connection through the relay: both its ends, and both directions.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;

use super::direction::{Direction, Unpassed};
use super::{Observer, Side};

/// A client, a server, and the data between them.
#[derive(Debug)]
pub(super) struct Link {
    client: UnixStream,
    server: UnixStream,
    /// From the client to the server.
    up: Direction,
    /// From the server to the client.
    down: Direction,
}

impl Link {
    pub(super) fn new(client: UnixStream, server: UnixStream, kept: usize) -> Self {
        Self {
            client,
            server,
            up: Direction::new(Side::Client, kept),
            down: Direction::new(Side::Server, kept),
        }
    }

    /// Returns `true` if nothing more will be passed on.
    pub(super) fn is_over(&self) -> bool {
        self.up.is_over() && self.down.is_over()
    }

    /// Passes on nothing more of the client.
    pub(super) fn end_client(&mut self) {
        self.up.end(&self.client, &self.server);
    }

    /// Returns the client's message that was not passed on, if the server ended first.
    pub(super) fn unpassed(&self) -> Option<Unpassed> {
        self.up.unpassed()
    }

    /// Returns the ends for the client and for the server of a second socket, once the server has
    /// offered one.
    pub(super) fn take_twin(&mut self) -> Option<(UnixStream, UnixStream)> {
        self.down.take_twin()
    }

    pub(super) fn into_ends(self) -> (UnixStream, UnixStream) {
        (self.client, self.server)
    }

    /// Passes on the data that is ready, after these events of the client and of the server. Returns
    /// `true` if there was some.
    pub(super) fn pass(
        &mut self,
        [client, server]: [PollFlags; 2],
        observer: &mut dyn Observer,
    ) -> bool {
        if client.contains(PollFlags::HUP) {
            self.down.end(&self.server, &self.client);
        }
        if server.contains(PollFlags::HUP) {
            self.up.end(&self.client, &self.server);
        }
        let up = self.up.is_ready(client, server);
        let down = self.down.is_ready(server, client);
        if up {
            self.up.pass(&self.client, &self.server, observer);
        }
        if down {
            self.down.pass(&self.server, &self.client, observer);
        }
        up || down
    }

    /// Returns the ends that are waited for, by the names that they have, and their events.
    pub(super) fn sources<S>(
        &self,
        client: S,
        server: S,
    ) -> impl Iterator<Item = (S, BorrowedFd<'_>, PollFlags)> {
        let events = [
            self.up.reads() | self.down.writes(),
            self.down.reads() | self.up.writes(),
        ];
        // An end that has hung up is always ready.
        let is_open = [!self.down.is_over(), !self.up.is_over()];
        let ends = [(client, self.client.as_fd()), (server, self.server.as_fd())];
        let sources = ends.into_iter().zip(events).zip(is_open);
        sources.filter_map(|(((name, fd), events), is_open)| {
            (is_open || !events.is_empty()).then_some((name, fd, events))
        })
    }
}
