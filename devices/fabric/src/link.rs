//! An adapter's link to its fabric.

pub(crate) mod direct;
mod shared;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use serde_bytes::ByteBuf;

use crate::attachment::{AttachError, Attachment};
use crate::gid::Gid;
use crate::limits::MAX_DATA;
use crate::link_statistics::LinkStatistics;
use crate::message::{Body, Incarnation, Message};
use crate::request::{RequestData, RequestError, SendError};
use shared::SharedLink;
pub use shared::{PacketHandler, Reply};

/// A working link. When it is dropped, the adapter leaves its fabric, and its requests end.
#[derive(Debug)]
pub struct Link {
    shared: Arc<SharedLink>,
    thread: Option<JoinHandle<()>>,
}

/// Sends to other adapters, from any number of threads, and never waits. All clones use the same
/// link.
#[derive(Clone, Debug)]
pub struct LinkSender {
    shared: Arc<SharedLink>,
}

impl Attachment {
    /// Starts the link's thread, which calls `handler` for peers' packets.
    ///
    /// # Errors
    /// [`AttachError::System`].
    pub fn start(self, handler: Arc<dyn PacketHandler>) -> Result<Link, AttachError> {
        let Self { address, socket } = self;
        let shared = SharedLink::new(socket).map_err(|source| address.system(source))?;
        let shared = Arc::new(shared);
        let (own, own_address) = (shared.clone(), address.clone());
        let thread = std::thread::Builder::new()
            .name("fabric".to_owned())
            .spawn(move || own.run(&own_address, handler.as_ref()));
        Ok(Link {
            shared,
            thread: Some(thread.map_err(|source| address.system(source))?),
        })
    }
}

impl Link {
    /// Returns the path to other adapters.
    pub fn sender(&self) -> LinkSender {
        LinkSender {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.leave();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread of the link to the fabric has panicked");
        }
    }
}

impl LinkSender {
    /// Sends a datagram, at most [`MAX_DATA`] bytes, to the holder of that GID. It may be lost.
    ///
    /// # Errors
    /// [`SendError::TooLong`], [`SendError::Lost`].
    pub fn datagram(&self, to: Gid, data: &[u8]) -> Result<(), SendError> {
        if data.len() > MAX_DATA {
            return Err(SendError::TooLong);
        }
        let message = Message::Packet {
            peer: to,
            incarnation: Incarnation::NONE,
            body: Body::Datagram {
                data: ByteBuf::from(data),
            },
        };
        let mut state = self.shared.state.lock();
        if state.socket.is_none() {
            return Err(SendError::Lost);
        }
        self.shared.send(&mut state, &message);
        self.shared.wake_if_full(&state);
        Ok(())
    }

    /// Returns `Some(true)` if descriptors can currently be sent to a peer, or `None` if that is
    /// not known. They cannot if the fabric impairs packets between the two, so that all data meets
    /// the impairments.
    pub fn takes_descriptors(&self, to: Gid) -> Option<bool> {
        self.shared.state.lock().transport.takes_descriptors(to)
    }

    /// Returns the numbers of packets that the link has sent again since its start.
    pub fn statistics(&self) -> LinkStatistics {
        self.shared.state.lock().transport.statistics()
    }

    /// Sends a request: at most [`MAX_DATA`] bytes and [`MAX_DESCRIPTORS`](crate::MAX_DESCRIPTORS)
    /// descriptors. The peer executes it at most once, in no particular order with others. `done`
    /// gets its response, or the reason for its absence. It is called like a [`PacketHandler`],
    /// and may not wait; it is dropped if nothing is sent.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn request(
        &self,
        to: Gid,
        data: &[u8],
        descriptors: Vec<Arc<OwnedFd>>,
        done: impl FnOnce(Result<Vec<u8>, RequestError>) + Send + 'static,
    ) -> Result<(), SendError> {
        let request = RequestData {
            data: ByteBuf::from(data),
            descriptors,
        };
        let mut state = self.shared.state.lock();
        if state.socket.is_none() {
            return Err(SendError::Lost);
        }
        let now = Instant::now();
        let sent = state.transport.request(to, request, Box::new(done), now);
        self.shared.carry_out(&mut state);
        if state.needs_thread() || !state.events.is_empty() {
            self.shared.wake.signal();
        }
        drop(state);
        sent.map_err(|(_, error)| error)
    }

    /// Receives some of the packets on direct connections, without waiting, and passes them to
    /// `handler`, which must be the one with which the link was started. The link's thread only
    /// receives there before it would give up a request or send it again. The descriptor of this
    /// value is readable while there are packets.
    pub fn receive(&self, handler: &dyn PacketHandler) {
        self.shared.receive_directly(handler);
    }
}

impl AsFd for LinkSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.direct_events.as_fd()
    }
}
