//! An endpoint's link to its switch.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use peerbar_host::socket_file::packets::{self, Message as _};
use peerbar_pci::BusAddress;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use serde_bytes::ByteBuf;
use thiserror::Error;

use crate::limits::{ENDPOINT_TIME_OUT, MAX_DATA, MAX_REQUESTS, SWITCH_TIME_OUT};
use crate::message::{LinkTiming, Message, PortId, RequestError, RequestResult};
use crate::switch_address::{AttachError, SwitchAddress};
use crate::window::{BarWindow, Descriptor};

/// Time that an endpoint waits for the reply of a peer, for which the switch waits for
/// [`ENDPOINT_TIME_OUT`] at most.
const REPLY_TIME_OUT: Duration = ENDPOINT_TIME_OUT.saturating_mul(2);

/// Time between two attempts to attach again.
const RETRY: Duration = Duration::from_millis(100);

/// Receives changes and requests of the peers. All methods are called from the link's own thread,
/// one at a time. While one runs, peers wait, and so do requests of this endpoint that have to know
/// a change. So no method may issue a request, or wait for anything except a copy in progress.
pub trait PeerHandler: Send + Sync {
    /// The endpoint has been attached, perhaps again, to a switch that counts the changes of all
    /// windows in this memory ([`peerbar_dma::ChangeCount`]). No peer is known yet. If this fails,
    /// the endpoint leaves the switch.
    fn attached(&self, changes: &Descriptor) -> io::Result<()>;
    /// All changes up to this count have been passed to [`PeerHandler::peer`].
    fn known(&self, count: u64);
    /// From now on `windows` are all windows of `peer`, with the leases of those that are lent.
    /// With them, all changes up to the count `known` are known. Once the acknowledgement is
    /// dropped, no request to the previous windows is in progress, unless it takes more than
    /// [`CLOSING_TIME_OUT`](crate::CLOSING_TIME_OUT).
    fn peer(
        &self,
        peer: PortId,
        windows: Vec<BarWindow>,
        leases: &Descriptor,
        known: u64,
        acknowledgement: Acknowledgement,
    );
    /// Transfers on the link of `peer` take this long from now on.
    fn link(&self, peer: PortId, timing: LinkTiming);
    /// The link to the switch is lost or ended, and with it every peer. Their windows belong to
    /// [`PortId::NONE`] until the endpoint is attached again and the switch has sent it all peers
    /// again.
    fn lost(&self);
    /// `peer` reads at `address`.
    fn read(&self, peer: PortId, address: BusAddress, data: &mut [u8]) -> Result<(), Unsupported>;
    /// `peer` writes at `address`.
    fn write(&self, peer: PortId, address: BusAddress, data: &[u8]) -> Result<(), Unsupported>;
    /// Returns `true` if [`PeerHandler::read`] and [`PeerHandler::write`] may wait for another
    /// process. They are then called from a second thread, still one at a time, and changes do not
    /// wait for them.
    fn makes_peers_wait(&self) -> bool {
        false
    }
}

/// Acknowledges a change of a peer's windows when it is dropped. Until then, the switch sends this
/// endpoint no further change.
#[derive(Debug)]
pub struct Acknowledgement {
    outbox: Outbox,
    ticket: u64,
}

impl Drop for Acknowledgement {
    fn drop(&mut self) {
        let ticket = self.ticket;
        // A failure ends the link, and its thread notices that.
        self.outbox.send(&Message::Ack { ticket });
    }
}

/// The endpoint does not answer at that address (PCIe Base 6.0, 2.3.1, Unsupported Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no window of this endpoint is there")]
pub struct Unsupported;

/// The switch is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the switch is gone")]
pub struct LinkLost;

/// A working link. When it is dropped, the endpoint leaves its switch.
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Requests to peers, from any number of threads. All clones use the same link.
#[derive(Clone)]
pub struct PeerRequests {
    shared: Arc<Shared>,
}

struct Shared {
    outbox: Mutex<Outbox>,
    state: Mutex<State>,
    /// `announced`, `lost` or `leaving` has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lost: bool,
    /// This endpoint is ending the link itself.
    leaving: bool,
    /// The sequence numbers of the last Announce sent, and of the last Announced received.
    sent: u64,
    announced: u64,
    /// The state that is sent to a switch when this endpoint attaches again.
    timing: Option<LinkTiming>,
    windows: Vec<BarWindow>,
    leases: Descriptor,
    last_tag: u64,
    waiting: HashMap<u64, (PortId, Sender<RequestResult>)>,
}

impl State {
    /// Returns the endpoint's last announcement.
    fn announcement(&self) -> Message {
        Message::Announce {
            sequence: self.sent,
            windows: self.windows.clone(),
            leases: self.leases.clone(),
        }
    }
}

impl Link {
    pub(crate) fn start(
        address: SwitchAddress,
        socket: OwnedFd,
        handler: Arc<dyn PeerHandler>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            outbox: Mutex::new(Outbox(Arc::new(socket))),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name("switch".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.run(&address, handler.as_ref())
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Sends the timing of this endpoint's link to the peers. Must be called at most once, before
    /// the first window is announced.
    pub fn send_timing(&self, timing: LinkTiming) {
        let mut state = self.shared.state.lock();
        state.timing = Some(timing.clone());
        if !state.lost {
            self.shared.send_own_timing(timing);
        }
    }

    /// Announces all windows of this endpoint. Once it returns, no peer begins a request to a
    /// previous window, and requests that begin later know the new windows. A copy that was in
    /// progress has ended, unless it takes more than 250 ms, or its endpoint is late with other
    /// changes or has waited for many already. If it fails with [`LinkLost`], the peers also notice
    /// that the switch is gone.
    pub fn announce(&self, windows: Vec<BarWindow>, leases: &Descriptor) -> Result<(), LinkLost> {
        let deadline = Instant::now() + SWITCH_TIME_OUT;
        let mut state = self.shared.state.lock();
        state.windows = windows;
        state.leases.clone_from(leases);
        // Nothing may be sent before the Hello of an attachment in progress.
        self.settle(&mut state, deadline)?;
        state.sent += 1;
        // The lock is held, so that sequence numbers arrive in order. A failure ends the link, and
        // the wait below notices that.
        self.shared.send(&state.announcement());
        self.settle(&mut state, deadline)
    }

    /// Waits until the switch has answered all announcements. At the deadline it gives up the link.
    fn settle(&self, state: &mut MutexGuard<'_, State>, deadline: Instant) -> Result<(), LinkLost> {
        let unsettled = |state: &mut State| !state.lost && state.announced < state.sent;
        self.shared
            .changed
            .wait_while_until(state, unsettled, deadline);
        if unsettled(state) {
            log::warn!("the switch does not answer in {SWITCH_TIME_OUT:?}: its link is given up");
            state.lost = true;
            self.shared.hang_up();
            return Err(LinkLost);
        }
        if state.lost { Err(LinkLost) } else { Ok(()) }
    }

    /// Returns the path to the peers.
    pub fn requests(&self) -> PeerRequests {
        PeerRequests {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.state.lock().leaving = true;
        self.shared.changed.notify_all();
        self.shared.hang_up();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread of the link to the switch has panicked");
        }
    }
}

impl PeerRequests {
    /// Reads `data.len()` bytes at `address` of `peer`. On failure the contents of `data` are undefined.
    pub fn read(
        &self,
        peer: PortId,
        address: BusAddress,
        data: &mut [u8],
    ) -> Result<(), RequestError> {
        for (part, address) in data.chunks_mut(MAX_DATA).zip(addresses(address)) {
            let length = u32::try_from(part.len()).map_err(|_| RequestError::Unsupported)?;
            let came = self.ask(peer, |tag| Message::Read {
                peer,
                tag,
                address,
                length,
            })?;
            if came.len() != part.len() {
                return Err(RequestError::Unsupported);
            }
            part.copy_from_slice(&came);
        }
        Ok(())
    }

    /// Writes `data` at `address` of `peer`. Once it returns, the peer has seen it, or part of it on failure.
    pub fn write(
        &self,
        peer: PortId,
        address: BusAddress,
        data: &[u8],
    ) -> Result<(), RequestError> {
        for (part, address) in data.chunks(MAX_DATA).zip(addresses(address)) {
            self.ask(peer, |tag| Message::Write {
                peer,
                tag,
                address,
                data: ByteBuf::from(part),
            })?;
        }
        Ok(())
    }

    /// Leaves a switch that does not answer. The endpoint attaches again as soon as it can.
    pub fn give_up(&self) {
        log::warn!("the switch does not list its changes: its link is given up");
        self.shared.hang_up();
    }

    fn ask(&self, peer: PortId, message: impl FnOnce(u64) -> Message) -> RequestResult {
        let (tag, answer) = self.shared.register(peer)?;
        let answer = if self.shared.send(&message(tag)) {
            answer
                .recv_timeout(REPLY_TIME_OUT)
                .map_err(|_| RequestError::TimedOut)
        } else {
            Err(RequestError::Gone)
        };
        self.shared.state.lock().waiting.remove(&tag);
        answer?
    }
}

impl Shared {
    /// The link's thread: attaches again whenever the link is lost.
    fn run(&self, address: &SwitchAddress, handler: &dyn PeerHandler) {
        std::thread::scope(|scope| {
            let requests = handler.makes_peers_wait().then(|| {
                let (requests, waiting) = channel();
                let thread = std::thread::Builder::new().name("requests".to_owned());
                let started = thread.spawn_scoped(scope, move || {
                    waiting
                        .iter()
                        .for_each(|request| answer_late(request, handler));
                });
                started.map(|_| requests)
            });
            let requests = requests.transpose().unwrap_or_else(|error| {
                log::warn!("changes of peers wait for their requests: {error}");
                None
            });
            loop {
                self.listen(handler, requests.as_ref());
                if !self.attach_again(address, handler) {
                    return;
                }
                log::warn!("attached to the switch again");
            }
        });
    }

    /// Handles the switch's messages until it is gone.
    fn listen(&self, handler: &dyn PeerHandler, requests: Option<&Sender<PeerRequest>>) {
        let (outbox, mut space) = (self.outbox(), Message::space());
        let end = loop {
            match Message::receive_until(&outbox.0, &mut space, None) {
                Ok(message @ (Message::Read { .. } | Message::Write { .. })) => {
                    let request = PeerRequest::new(outbox.clone(), message);
                    match requests {
                        // Fails only if the handler has panicked.
                        Some(requests) => drop(requests.send(request)),
                        None => request.answer(handler),
                    }
                }
                Ok(message) => {
                    if !self.take(message, &outbox, handler) {
                        break "it breaks the protocol, or takes no answer".to_owned();
                    }
                }
                Err(error) => break error.to_string(),
            }
        };
        self.hang_up();
        if !self.state.lock().leaving {
            log::warn!("the link to the switch is lost: transfers to peers fail until it is back");
        }
        handler.lost();
        let mut state = self.state.lock();
        state.lost = true;
        for (_, (_, waiting)) in state.waiting.drain() {
            // Fails if the request has timed out.
            let _ = waiting.send(Err(RequestError::Gone));
        }
        self.changed.notify_all();
        log::info!("the link to the switch has ended: {end}");
    }

    /// Tries to attach until it succeeds. Returns `false` if this endpoint leaves. Afterwards sends
    /// the switch the state of this endpoint again.
    fn attach_again(&self, address: &SwitchAddress, handler: &dyn PeerHandler) -> bool {
        loop {
            let mut state = self.state.lock();
            if !state.leaving {
                self.changed.wait_for(&mut state, RETRY);
            }
            if state.leaving {
                return false;
            }
            let socket = match address.connect() {
                Ok(socket) => Arc::new(socket),
                Err(error) => {
                    log::debug!("{error}");
                    continue;
                }
            };
            // Set before the lock is released: a thread that sets `leaving` next shuts this socket
            // down.
            *self.outbox.lock() = Outbox(socket.clone());
            drop(state);
            let attached = address.attach(&socket).and_then(|(_, changes)| {
                let attached = handler.attached(&changes);
                attached.map_err(AttachError::Changes)
            });
            if let Err(error) = attached {
                let level = match error {
                    AttachError::Changes(_) => log::Level::Warn,
                    _ => log::Level::Debug,
                };
                log::log!(level, "{error}");
                continue;
            }
            self.introduce();
            return true;
        }
    }

    /// Sends the switch this endpoint's state. A failure ends the link.
    fn introduce(&self) {
        let mut state = self.state.lock();
        state.lost = false;
        state.sent += 1;
        self.send(&Message::Mark);
        if let Some(timing) = state.timing.clone() {
            self.send_own_timing(timing);
        }
        self.send(&state.announcement());
    }

    fn send_own_timing(&self, timing: LinkTiming) {
        let peer = PortId::NONE;
        self.send(&Message::Link { peer, timing });
    }

    fn outbox(&self) -> Outbox {
        self.outbox.lock().clone()
    }

    /// Handles a message. Returns `false` if the link cannot continue.
    fn take(&self, message: Message, outbox: &Outbox, handler: &dyn PeerHandler) -> bool {
        match message {
            Message::Peer {
                ticket,
                peer,
                windows,
                leases,
                known,
            } => {
                let outbox = outbox.clone();
                let acknowledgement = Acknowledgement { outbox, ticket };
                handler.peer(peer, windows, &leases, known, acknowledgement);
                true
            }
            Message::Link { peer, timing } => {
                handler.link(peer, timing);
                true
            }
            Message::Known { count } => {
                handler.known(count);
                true
            }
            Message::Announced { sequence } => {
                let mut state = self.state.lock();
                state.announced = state.announced.max(sequence);
                self.changed.notify_all();
                sequence <= state.sent
            }
            Message::Reply { peer, tag, outcome } => {
                self.complete(peer, tag, outcome);
                true
            }
            _ => false,
        }
    }

    fn register(&self, peer: PortId) -> Result<(u64, Receiver<RequestResult>), RequestError> {
        let mut state = self.state.lock();
        if state.lost {
            return Err(RequestError::Gone);
        }
        if state.waiting.len() >= MAX_REQUESTS {
            return Err(RequestError::TimedOut);
        }
        state.last_tag += 1;
        let tag = state.last_tag;
        let (sender, receiver) = channel();
        state.waiting.insert(tag, (peer, sender));
        Ok((tag, receiver))
    }

    fn complete(&self, peer: PortId, tag: u64, outcome: RequestResult) {
        let waiting = self.state.lock().waiting.remove(&tag);
        match waiting.filter(|(asked, _)| *asked == peer) {
            // Fails if the request has timed out.
            Some((_, waiting)) => drop(waiting.send(outcome)),
            None => log::debug!("port {peer} answers a request that is not pending"),
        }
    }

    fn send(&self, message: &Message) -> bool {
        self.outbox().send(message)
    }

    fn hang_up(&self) {
        self.outbox().hang_up();
    }
}

/// The sending side of one connection to the switch.
#[derive(Clone, Debug)]
struct Outbox(Arc<OwnedFd>);

impl Outbox {
    /// Sends a message. Returns `false` if that fails, which ends the link.
    fn send(&self, message: &Message) -> bool {
        let deadline = Instant::now() + SWITCH_TIME_OUT;
        let sent = packets::send_until(&self.0, &message.encode(), deadline);
        let sent = sent.inspect_err(|error| {
            log::debug!("cannot send to the switch: {error}");
            self.hang_up();
        });
        sent.is_ok()
    }

    fn reply(&self, peer: PortId, tag: u64, outcome: Result<ByteBuf, Unsupported>) {
        let outcome = outcome.map_err(|Unsupported| RequestError::Unsupported);
        self.send(&Message::Reply { peer, tag, outcome });
    }

    /// Ends the link on both sides; its thread notices.
    fn hang_up(&self) {
        match shutdown(&self.0, Shutdown::Both) {
            Ok(()) | Err(Errno::NOTCONN) => {}
            Err(error) => log::debug!("the link cannot be closed: {error}"),
        }
    }
}

/// A request of a peer.
struct PeerRequest {
    outbox: Outbox,
    came: Instant,
    request: Message,
}

impl PeerRequest {
    fn new(outbox: Outbox, request: Message) -> Self {
        let came = Instant::now();
        Self {
            outbox,
            came,
            request,
        }
    }

    /// Has the handler execute the request, and answers the peer. A failure to send ends the link,
    /// and its thread notices that.
    fn answer(self, handler: &dyn PeerHandler) {
        match self.request {
            Message::Read {
                peer,
                tag,
                address,
                length,
            } => {
                let mut data = ByteBuf::from(vec![0; usize::try_from(length).unwrap_or(0)]);
                let outcome = handler.read(peer, address, &mut data);
                self.outbox.reply(peer, tag, outcome.map(|()| data));
            }
            Message::Write {
                peer,
                tag,
                address,
                ref data,
            } => {
                let outcome = handler.write(peer, address, data);
                self.outbox
                    .reply(peer, tag, outcome.map(|()| ByteBuf::new()));
            }
            _ => {}
        }
    }
}

/// Answers a request that had to wait for others, unless its peer no longer waits.
fn answer_late(request: PeerRequest, handler: &dyn PeerHandler) {
    if request.came.elapsed() < ENDPOINT_TIME_OUT {
        request.answer(handler);
    }
}

/// Returns the addresses of a request's parts. A range that wraps around has been refused before.
fn addresses(first: BusAddress) -> impl Iterator<Item = BusAddress> {
    (0..).map(move |index: u64| first.wrapping_add(index.wrapping_mul(MAX_DATA as u64)))
}
