//! The work of an adapter's link, on its own thread and on those of its senders.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use peerbar_host::eventfd::EventFd;
use peerbar_host::socket_file::descriptors::Sockets;
use peerbar_host::socket_file::packets::{self, Message as _, Packet, ReceiveError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use serde_bytes::ByteBuf;

use super::direct::{PeerConnections, Received, is_end};
use crate::attachment::FabricAddress;
use crate::gid::Gid;
use crate::limits::MAX_DATA;
use crate::message::Message;
use crate::request::{RequestError, RequestId};
use crate::transport::{Output, Transport};

/// Time between two attempts to attach again.
const RETRY: Duration = Duration::from_millis(100);

/// The most packets that wait for the fabric to read. The adapter causes all of them itself, and
/// further ones may be lost.
const MAX_UNSENT: usize = 512;

/// The continuation of a request.
pub(super) type Done = Box<dyn FnOnce(Result<Vec<u8>, RequestError>) + Send>;

/// Receives peers' packets. All methods are called one at a time, from the link's own thread and
/// from [`LinkSender::receive`](super::LinkSender::receive). While one runs, the link does not send
/// packets again, so no method may wait.
pub trait PacketHandler: Send + Sync {
    /// `from` has sent a datagram. Datagrams may be lost, late or duplicated.
    fn datagram(&self, from: Gid, data: &[u8]);
    /// `from` has sent a request, which must be executed. It comes once. `reply` may be sent later,
    /// by any thread.
    fn request(&self, from: Gid, data: Vec<u8>, descriptors: Vec<OwnedFd>, reply: Reply);
    /// `peer` has left, or another adapter has its address now: state that is kept for it is
    /// useless.
    fn gone(&self, peer: Gid);
    /// The fabric is gone. All requests have ended, and all peers are gone; the link attaches again
    /// by itself.
    fn lost(&self);
}

/// The answer to one request. Dropping it refuses the request.
#[derive(Debug)]
pub struct Reply {
    shared: Arc<SharedLink>,
    id: Option<RequestId>,
}

/// The state that the handles of a link and its thread share.
pub(super) struct SharedLink {
    pub(super) state: Mutex<LockedLink>,
    /// Held while events are handled, so that they are handled in order.
    handling: Mutex<()>,
    /// Wakes the link's thread.
    pub(super) wake: EventFd,
    /// Readable when a packet has come on a direct connection.
    pub(super) direct_events: Arc<OwnedFd>,
}

pub(super) struct LockedLink {
    /// The socket, or `None` while there is no fabric.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// The socket of an attempt to attach again.
    attempt: Option<Arc<OwnedFd>>,
    pub(super) transport: Transport<Done>,
    direct: PeerConnections,
    unsent: VecDeque<Packet>,
    /// Events to handle without the lock.
    pub(super) events: Vec<Output<Done>>,
    /// The time at which the link's thread wakes up by itself, if it does.
    wakes_at: Option<Instant>,
    is_leaving: bool,
}

impl fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLink").finish_non_exhaustive()
    }
}

impl LockedLink {
    /// Makes the transport handle some of the packets on direct connections.
    fn take_direct(&mut self, now: Instant) {
        for received in self.direct.receive() {
            match received {
                Received::Packet(packet) => self.transport.receive_directly(packet, now),
                Received::Ended(peer) => self.transport.disconnected(peer),
            }
        }
    }

    /// Returns `true` if the link's thread has something to send before it would wake up.
    pub(super) fn needs_thread(&self) -> bool {
        let is_late = |deadline| self.wakes_at.is_none_or(|wakes_at| deadline < wakes_at);
        !self.unsent.is_empty() || self.transport.deadline().is_some_and(is_late)
    }
}

impl SharedLink {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let direct = PeerConnections::new()?;
        Ok(Self {
            direct_events: direct.events(),
            state: Mutex::new(LockedLink {
                socket: Some(Arc::new(socket)),
                attempt: None,
                transport: Transport::new(),
                direct,
                unsent: VecDeque::new(),
                events: Vec::new(),
                wakes_at: None,
                is_leaving: false,
            }),
            handling: Mutex::new(()),
            wake: EventFd::new()?,
        })
    }

    /// Makes the link's thread end, soon.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.is_leaving = true;
        if let Some(attempt) = state.attempt.take() {
            // It may have ended.
            let _ = shutdown(attempt, Shutdown::Both);
        }
        drop(state);
        self.wake.signal();
    }

    /// The link's thread: attaches again whenever the fabric is lost.
    pub(super) fn run(self: &Arc<Self>, address: &FabricAddress, handler: &dyn PacketHandler) {
        loop {
            self.listen(handler);
            self.lose();
            self.handle_events(handler);
            if self.state.lock().is_leaving {
                return;
            }
            handler.lost();
            if !self.attach_again(address) {
                return;
            }
            log::warn!("attached to the fabric again");
        }
    }

    /// Handles the fabric's messages and time-outs, until the fabric is gone or this adapter
    /// leaves.
    fn listen(self: &Arc<Self>, handler: &dyn PacketHandler) {
        let mut space = Message::space();
        loop {
            let mut state = self.state.lock();
            let Some(socket) = state.socket.clone().filter(|_| !state.is_leaving) else {
                return;
            };
            let now = Instant::now();
            if state.transport.deadline().is_some_and(|at| at <= now) {
                // The awaited packet may have come.
                state.take_direct(now);
            }
            state.transport.expire(now);
            self.carry_out(&mut state);
            let deadline = state.transport.deadline();
            let out = if state.unsent.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            let is_idle = state.events.is_empty();
            state.wakes_at = deadline;
            drop(state);
            if !is_idle {
                self.handle_events(handler);
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(now));
            if let Err(error) = self.wait(&socket, out, left) {
                log::warn!("the link to the fabric ends: {error}");
                return;
            }
            if !self.receive(&socket, &mut space) {
                return;
            }
        }
    }

    /// Waits for an event.
    fn wait(&self, socket: &OwnedFd, out: PollFlags, left: Option<Duration>) -> Result<(), Errno> {
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(|_| Errno::INVAL)?;
        let mut polled = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(socket, PollFlags::IN | out),
        ];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        self.wake.take();
        Ok(())
    }

    /// Handles one message, if there is one. Returns `false` if the link has ended.
    fn receive(&self, socket: &OwnedFd, space: &mut [u8]) -> bool {
        // A direct connection comes as a socket.
        let end = match Message::receive_with(socket, space, Sockets::Unix) {
            Ok(message) => {
                let mut state = self.state.lock();
                let is_known = state.transport.receive(message, Instant::now());
                self.carry_out(&mut state);
                if is_known {
                    return true;
                }
                "it breaks the protocol".to_owned()
            }
            Err(error) if is_end(&error) => error.to_string(),
            Err(ReceiveError::Nothing) => return true,
            Err(error) => {
                log::debug!("a packet of the fabric is lost: {error}");
                return true;
            }
        };
        log::info!("the link to the fabric has ended: {end}");
        false
    }

    pub(super) fn receive_directly(self: &Arc<Self>, handler: &dyn PacketHandler) {
        let mut state = self.state.lock();
        state.take_direct(Instant::now());
        self.carry_out(&mut state);
        let is_idle = state.events.is_empty();
        if state.needs_thread() {
            self.wake.signal();
        }
        drop(state);
        if !is_idle {
            self.handle_events(handler);
        }
    }

    /// Calls the handlers of the events, without the lock.
    fn handle_events(self: &Arc<Self>, handler: &dyn PacketHandler) {
        let _handling = self.handling.lock();
        let events = std::mem::take(&mut self.state.lock().events);
        for event in events {
            match event {
                Output::Send(_) | Output::SendByFabric(_) | Output::Direct(..) => {}
                Output::Complete(done, outcome) => done(outcome),
                Output::Datagram(from, data) => handler.datagram(from, &data),
                Output::Request(id, request) => {
                    let reply = Reply {
                        shared: self.clone(),
                        id: Some(id),
                    };
                    let data = request.data.into_vec();
                    match owned(request.descriptors) {
                        Some(descriptors) => handler.request(id.from, data, descriptors, reply),
                        None => drop(reply),
                    }
                }
                Output::Gone(peer) => handler.gone(peer),
            }
        }
    }

    /// Handles the loss of the fabric.
    fn lose(&self) {
        let mut state = self.state.lock();
        state.socket = None;
        state.direct.clear();
        state.unsent.clear();
        state.transport.lose();
        self.carry_out(&mut state);
    }

    /// Tries to attach until it succeeds. Returns `false` if this adapter leaves.
    fn attach_again(&self, address: &FabricAddress) -> bool {
        loop {
            let retry = Timespec::try_from(RETRY).ok();
            // If it is woken early, it tries early.
            let _ = poll(
                &mut [PollFd::new(&self.wake, PollFlags::IN)],
                retry.as_ref(),
            );
            self.wake.take();
            let socket = match address.connect() {
                Ok(socket) => Arc::new(socket),
                Err(error) => {
                    log::debug!("{error}");
                    if self.state.lock().is_leaving {
                        return false;
                    }
                    continue;
                }
            };
            let mut state = self.state.lock();
            if state.is_leaving {
                return false;
            }
            state.attempt = Some(socket.clone());
            drop(state);
            let attached = address.attach(&socket);
            let mut state = self.state.lock();
            state.attempt = None;
            match attached {
                Ok(()) => {
                    state.socket = Some(socket);
                    return true;
                }
                Err(error) => log::debug!("{error}"),
            }
        }
    }

    /// Executes the transport's outputs that send something. The others are for the link's thread.
    pub(super) fn carry_out(&self, state: &mut MutexGuard<'_, LockedLink>) {
        for output in state.transport.take_outputs() {
            match output {
                Output::Send(message) => self.send(state, &message),
                Output::SendByFabric(message) => self.send_by_fabric(state, message.encode()),
                Output::Direct(peer, incarnation, socket) => {
                    if !state.direct.add(peer, incarnation, socket) {
                        state.transport.disconnected(peer);
                    }
                }
                event => {
                    if let Output::Gone(peer) = event {
                        state.direct.remove(peer);
                    }
                    state.events.push(event);
                }
            }
        }
        self.flush(state);
    }

    pub(super) fn send(&self, state: &mut MutexGuard<'_, LockedLink>, message: &Message) {
        let packet = message.encode();
        if !state.direct.send(message, &packet) {
            self.send_by_fabric(state, packet);
        }
    }

    fn send_by_fabric(&self, state: &mut MutexGuard<'_, LockedLink>, packet: Packet) {
        if state.unsent.len() < MAX_UNSENT {
            state.unsent.push_back(packet);
        }
        self.flush(state);
    }

    /// Sends until the socket buffer is full. The link's thread continues, once it is woken.
    fn flush(&self, state: &mut MutexGuard<'_, LockedLink>) {
        let Some(socket) = state.socket.clone() else {
            state.unsent.clear();
            return;
        };
        while let Some(packet) = state.unsent.front() {
            match packets::send(socket.as_fd(), packet) {
                Err(Errno::AGAIN) => return,
                Ok(()) => {}
                // The link's thread notices the end of the link. Packets for which the system has
                // no memory are lost.
                Err(error) => log::debug!("cannot send to the fabric: {error}"),
            }
            state.unsent.pop_front();
        }
    }

    /// Makes the link's thread send the packets for which the socket buffer has no space.
    pub(super) fn wake_if_full(&self, state: &LockedLink) {
        if !state.unsent.is_empty() {
            self.wake.signal();
        }
    }
}

/// Returns the descriptors for one owner alone.
fn owned(descriptors: Vec<Arc<OwnedFd>>) -> Option<Vec<OwnedFd>> {
    descriptors.into_iter().map(Arc::into_inner).collect()
}

impl Reply {
    /// Sends the response: at most [`MAX_DATA`] bytes. A longer one refuses the request.
    pub fn send(mut self, data: Vec<u8>) {
        let data = Some(data).filter(|data| data.len() <= MAX_DATA);
        self.answer(data.map(ByteBuf::from));
    }

    fn answer(&mut self, data: Option<ByteBuf>) {
        if let Some(id) = self.id.take() {
            let mut state = self.shared.state.lock();
            state.transport.respond(id, data);
            self.shared.carry_out(&mut state);
            self.shared.wake_if_full(&state);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(None);
    }
}
