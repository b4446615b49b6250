//! An endpoint's link to its switch.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use thiserror::Error;

use crate::message::{LinkTiming, Memory, Message, PortId, Status, Window};
use crate::requests::MAX_REQUESTS;
use crate::socket;
use crate::switch::PATIENCE;
use crate::wire::MAX_DATA;

/// How long an endpoint waits for its switch, which itself waits for [`PATIENCE`] at most.
pub(crate) const TIME_OUT: Duration = PATIENCE.saturating_mul(2);

/// What an endpoint is told by its peers, and asked. All methods are called from the link's own thread, one at a time;
/// while one runs, peers wait, so none may wait for anything but a copy in progress.
pub trait Neighbour: Send + Sync {
    /// These are all windows of `peer` from now on. Once this returns, nothing happens by the windows of before.
    fn peer(&self, peer: PortId, windows: Vec<Window>);
    /// Transfers on the link of `peer` take this long from now on.
    fn link(&self, peer: PortId, timing: LinkTiming);
    /// The switch is gone, and with it every peer, for good.
    fn lost(&self);
    /// A peer reads at a bus address.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Unsupported>;
    /// A peer writes at a bus address.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Unsupported>;
}

/// The endpoint does not answer at that address (PCIe Base 6.0, 2.3.1, Unsupported Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no window of this endpoint is there")]
pub struct Unsupported;

/// There is no switch any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the switch is gone")]
pub struct LinkLost;

/// Why a request to a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The peer does not answer at that address.
    #[error("the peer does not answer there")]
    Unsupported,
    /// The peer, or the switch, has vanished.
    #[error("the peer is gone")]
    Gone,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
}

/// A window as its owner announces it.
#[derive(Clone, Debug)]
pub struct Lent {
    /// Which BAR it is.
    pub bar: u8,
    /// First bus address.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
    /// The memory behind it, from an offset on, or `None` for what peers reach by messages.
    pub memory: Option<(Arc<OwnedFd>, u64)>,
}

/// The link at work. Dropped, the endpoint leaves its switch.
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Requests to peers, from any number of threads. All clones go by the same link.
#[derive(Clone)]
pub struct PeerRequests {
    shared: Arc<Shared>,
}

struct Shared {
    socket: OwnedFd,
    state: Mutex<State>,
    /// `announced` or `lost` has changed.
    news: Condvar,
}

#[derive(Default)]
struct State {
    lost: bool,
    /// This endpoint ends the link itself.
    leaving: bool,
    /// Of the last Announce sent, and of the last Announced.
    sent: u64,
    announced: u64,
    last_tag: u64,
    waiting: HashMap<u64, (PortId, Sender<Answer>)>,
}

/// What came of a request, and what was read.
type Answer = (Status, Vec<u8>);

impl Link {
    pub(crate) fn start(socket: OwnedFd, neighbour: Arc<dyn Neighbour>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket,
            state: Mutex::default(),
            news: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name("switch".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.listen(neighbour.as_ref())
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Tells the peers how long transfers on the link of this endpoint take. To be called once at most, before the first
    /// window is announced.
    pub fn tell_timing(&self, timing: LinkTiming) {
        let peer = PortId(0);
        // A failure ends the link.
        self.shared.send(&Message::Link { peer, timing });
    }

    /// Announces all windows of this endpoint. Once it returns, nobody uses the windows of before: they have said so, or
    /// have been cut off. With [`LinkLost`] they learn, or have learned, from the switch's absence.
    pub fn announce(&self, windows: &[Lent]) -> Result<(), LinkLost> {
        let windows = windows.iter().map(announced).collect();
        let mut state = self.shared.state();
        state.sent += 1;
        let sequence = state.sent;
        let message = Message::Announce { sequence, windows };
        if !state.lost {
            // With the lock held, so that sequence numbers arrive in order. A failure ends the link, which is waited for.
            self.shared.send(&message);
        }
        let unsettled = |state: &mut State| !state.lost && state.announced < sequence;
        let (mut state, _) = self
            .shared
            .news
            .wait_timeout_while(state, TIME_OUT, unsettled)
            .unwrap_or_else(PoisonError::into_inner);
        if unsettled(&mut state) {
            log::warn!("the switch does not answer and is given up");
            self.shared.hang_up();
            return Err(LinkLost);
        }
        if state.lost { Err(LinkLost) } else { Ok(()) }
    }

    /// The way to the peers.
    pub fn requests(&self) -> PeerRequests {
        PeerRequests {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.state().leaving = true;
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
    /// Reads `data.len()` bytes at the bus address `address` of `peer`. On failure the contents of `data` are undefined.
    pub fn read(&self, peer: PortId, address: u64, data: &mut [u8]) -> Result<(), RequestError> {
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

    /// Writes `data` at the bus address `address` of `peer`. Once it returns, the peer has seen it, or part of it on failure.
    pub fn write(&self, peer: PortId, address: u64, data: &[u8]) -> Result<(), RequestError> {
        for (part, address) in data.chunks(MAX_DATA).zip(addresses(address)) {
            self.ask(peer, |tag| Message::Write {
                peer,
                tag,
                address,
                data: part.to_vec(),
            })?;
        }
        Ok(())
    }

    fn ask(
        &self,
        peer: PortId,
        message: impl FnOnce(u64) -> Message,
    ) -> Result<Vec<u8>, RequestError> {
        let (tag, answer) = self.shared.register(peer)?;
        let answer = if self.shared.send(&message(tag)) {
            answer
                .recv_timeout(TIME_OUT)
                .map_err(|_| RequestError::TimedOut)
        } else {
            Err(RequestError::Gone)
        };
        self.shared.state().waiting.remove(&tag);
        match answer? {
            (Status::Done, data) => Ok(data),
            (Status::Unsupported, _) => Err(RequestError::Unsupported),
            (Status::Gone, _) => Err(RequestError::Gone),
            (Status::TimedOut, _) => Err(RequestError::TimedOut),
        }
    }
}

impl Shared {
    /// The link's thread: takes what the switch says until it is gone.
    fn listen(&self, neighbour: &dyn Neighbour) {
        let mut space = socket::space();
        let end = loop {
            match socket::receive_until(&self.socket, &mut space, None) {
                Ok(message) => {
                    if !self.take(message, neighbour) {
                        break "it breaks the protocol, or takes no answer".to_owned();
                    }
                }
                Err(error) => break error.to_string(),
            }
        };
        self.hang_up();
        if !self.state().leaving {
            neighbour.lost();
        }
        let mut state = self.state();
        state.lost = true;
        for (_, (_, waiting)) in state.waiting.drain() {
            // Who has given up does not care.
            let _ = waiting.send((Status::Gone, Vec::new()));
        }
        self.news.notify_all();
        log::info!("the link to the switch has ended: {end}");
    }

    /// Does what a message asks for. False if the link cannot go on.
    fn take(&self, message: Message, neighbour: &dyn Neighbour) -> bool {
        match message {
            Message::Peer {
                epoch,
                peer,
                windows,
            } => {
                neighbour.peer(peer, windows);
                self.send(&Message::Ack { epoch })
            }
            Message::Link { peer, timing } => {
                neighbour.link(peer, timing);
                true
            }
            Message::Announced { sequence } => {
                let mut state = self.state();
                state.announced = state.announced.max(sequence);
                self.news.notify_all();
                sequence <= state.sent
            }
            Message::Read {
                peer,
                tag,
                address,
                length,
            } => {
                let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
                let outcome = neighbour.read(address, &mut data);
                self.answer(peer, tag, outcome.map(|()| data))
            }
            Message::Write {
                peer,
                tag,
                address,
                data,
            } => {
                let outcome = neighbour.write(address, &data);
                self.answer(peer, tag, outcome.map(|()| Vec::new()))
            }
            Message::Reply {
                peer,
                tag,
                status,
                data,
            } => {
                self.complete(peer, tag, status, data);
                true
            }
            _ => false,
        }
    }

    fn answer(&self, peer: PortId, tag: u64, outcome: Result<Vec<u8>, Unsupported>) -> bool {
        let (status, data) = match outcome {
            Ok(data) => (Status::Done, data),
            Err(Unsupported) => (Status::Unsupported, Vec::new()),
        };
        self.send(&Message::Reply {
            peer,
            tag,
            status,
            data,
        })
    }

    fn register(&self, peer: PortId) -> Result<(u64, Receiver<Answer>), RequestError> {
        let mut state = self.state();
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

    fn complete(&self, peer: PortId, tag: u64, status: Status, data: Vec<u8>) {
        let waiting = self.state().waiting.remove(&tag);
        match waiting.filter(|(asked, _)| *asked == peer) {
            // Who has given up does not care.
            Some((_, waiting)) => drop(waiting.send((status, data))),
            None => log::debug!("port {peer} answers a request that nobody waits for"),
        }
    }

    /// Whether the message could be sent; if not, the link is over.
    fn send(&self, message: &Message) -> bool {
        match socket::send_until(&self.socket, &message.encode(), Instant::now() + TIME_OUT) {
            Ok(()) => true,
            Err(error) => {
                log::debug!("the switch cannot be told anything: {error}");
                self.hang_up();
                false
            }
        }
    }

    /// Ends the link on both sides; its thread notices.
    fn hang_up(&self) {
        if let Err(error) = shutdown(&self.socket, Shutdown::Both)
            && error != Errno::NOTCONN
        {
            log::debug!("the link cannot be closed: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where each part of a request begins. A range that wraps around has been refused before.
fn addresses(first: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |index: u64| first.wrapping_add(index.wrapping_mul(MAX_DATA as u64)))
}

fn announced(window: &Lent) -> Window {
    Window {
        bar: window.bar,
        address: window.address,
        size: window.size,
        claim: 0,
        memory: match &window.memory {
            Some((descriptor, offset)) => Memory::Lent(descriptor.clone(), *offset),
            None => Memory::ByMessage,
        },
    }
}
