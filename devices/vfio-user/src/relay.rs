//! A relay between a client and a server: it passes their messages on, with descriptors, in both
//! directions, and shows each one to an [`Observer`].
//!
//! The relay changes nothing that either side can tell: bytes are sent on as soon as no more of
//! their message are in the socket, descriptors with the same part of the message, and a closed or
//! half-closed connection is passed on, too. Bytes that cannot be cut into messages are passed on
//! as they are. A direction holds at most one message, or 64 KiB of a longer one, so a side that
//! does not read stops the other one as it would without the relay.
//!
//! A second socket for the server's commands (vfio-user, VERSION, `twin_socket`) is relayed, too: the
//! client gets the end of another pair in place of the server's.
//!
//! Once the server is gone, requests that could not be passed on are answered with ENODEV, because
//! QEMU waits for the answers with the guest stopped.

mod descriptor_info;
mod direction;
mod framer;
mod link;
mod outbox;
mod twin;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use peerbar_host::socket_file::descriptors::discard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::accept::accept;
use crate::server::refuse_client;
use crate::unanswered::Unanswered;
use crate::wire::Header;

pub use descriptor_info::DescriptorInfo;
use link::Link;

/// The observer is told that nothing happens once no message has come for this time.
const IDLE: Duration = Duration::from_millis(100);
/// Time that a server has to answer requests and to close its connection after a stop.
const STOP_TIME_OUT: Duration = Duration::from_secs(1);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The client, such as QEMU.
    Client,
    /// The server, which is the device.
    Server,
}

impl Side {
    /// Returns the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A message that has been passed on, or waits for space in the receiver's socket.
#[derive(Debug)]
pub struct PassedMessage<'a> {
    /// Time at which its last byte was received, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// Its header.
    pub header: Header,
    /// Its payload, or the start of a payload that is longer than the relay keeps.
    pub payload: &'a [u8],
    /// Length of the whole payload in bytes.
    pub length: usize,
    /// Its descriptors in their order.
    pub descriptors: &'a [DescriptorInfo],
}

/// Something other than a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A header announces a message of this size, which is smaller than the header. From there on
    /// the stream is passed on as bytes.
    Unframed(u32),
    /// The stream ended inside a message, this many bytes before the end of its header or payload.
    CutShort(usize),
    /// The kernel dropped descriptors, because this process may have no more of them.
    DescriptorsLost,
    /// This side has closed its connection, or its half.
    Closed,
    /// Data for the other side can no longer be sent.
    Undeliverable(Errno),
    /// Another client has connected and was disconnected.
    SecondClient,
    /// The server's commands and their replies pass on a second socket, which is shown, too.
    TwinSocket,
    /// The second socket is not shown: its descriptor came apart from the end of the reply.
    TwinSocketUnseen,
}

/// Sees what a relay passes on.
pub trait Observer {
    /// A message of `from` has been passed on.
    fn message(&mut self, from: Side, message: &PassedMessage<'_>);
    /// Something has happened on the side of `from`, at a time in nanoseconds of CLOCK_MONOTONIC.
    fn notice(&mut self, from: Side, at: u64, notice: Notice);
    /// No message has come for a tenth of a second. Called once until the next message.
    fn idle(&mut self) {}
}

/// A client and a server, and the data between them.
#[derive(Debug)]
pub struct Relay {
    main: Link,
    /// The second socket for the server's commands.
    twin: Option<Link>,
    kept: usize,
}

/// Returns the present time in nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

impl Relay {
    /// Makes a relay. The observer gets the first `kept` bytes of each payload.
    pub fn new(client: UnixStream, server: UnixStream, kept: usize) -> Self {
        Self {
            main: Link::new(client, server, kept),
            twin: None,
            kept,
        }
    }

    /// Relays until both sides have ended, or `stop` becomes readable. The server then has a second
    /// to answer and to close its connection. Clients that connect to `listener` are disconnected.
    ///
    /// # Errors
    /// The process cannot wait for its sockets.
    pub fn run(
        mut self,
        stop: BorrowedFd<'_>,
        listener: Option<&UnixListener>,
        observer: &mut dyn Observer,
    ) -> Result<(), Errno> {
        let mut stop = Some(stop);
        let mut listener = listener;
        let mut deadline = None;
        let mut idle_at = Some(Instant::now() + IDLE);
        while !self.main.is_over() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let until = [deadline, idle_at].into_iter().flatten().min();
            let ready = self.wait(stop, listener, until)?;
            if idle_at.is_some_and(|idle_at| idle_at <= Instant::now()) {
                observer.idle();
                idle_at = None;
            }
            if ready.stop {
                self.main.end_client();
                stop = None;
                deadline = Some(Instant::now() + STOP_TIME_OUT);
            }
            if let Some(listening) = listener.filter(|_| ready.listener) {
                listener = refuse(listening, observer).then_some(listening);
            }
            if self.pass(&ready, observer) {
                idle_at = Some(Instant::now() + IDLE);
            }
        }
        self.finish();
        Ok(())
    }

    /// Passes on the data that is ready. Returns `true` if there was some.
    fn pass(&mut self, ready: &Ready, observer: &mut dyn Observer) -> bool {
        let mut passed = self.main.pass(ready.main, observer);
        if let Some(twin) = &mut self.twin {
            passed |= twin.pass(ready.twin, &mut ExceptItsEnd(observer));
        }
        if let Some((client, server)) = self.main.take_twin() {
            self.twin = Some(Link::new(client, server, self.kept));
        }
        passed
    }

    /// Waits for one of the sockets, at most until a moment.
    fn wait(
        &self,
        stop: Option<BorrowedFd<'_>>,
        listener: Option<&UnixListener>,
        until: Option<Instant>,
    ) -> Result<Ready, Errno> {
        let mut sources = Vec::with_capacity(6);
        sources.extend(stop.map(|stop| (Source::Stop, stop, PollFlags::IN)));
        let listening =
            listener.map(|listener| (Source::Listener, listener.as_fd(), PollFlags::IN));
        sources.extend(listening);
        sources.extend(self.main.sources(Source::Client, Source::Server));
        if let Some(twin) = &self.twin {
            sources.extend(twin.sources(Source::TwinClient, Source::TwinServer));
        }
        let fds = sources.iter();
        let fds = fds.map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose();
        match poll(&mut fds, left.map_err(|_| Errno::INVAL)?.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error),
        }
        let mut ready = Ready::default();
        for ((source, ..), fd) in sources.iter().zip(&fds) {
            ready.add(*source, fd.revents());
        }
        Ok(ready)
    }

    /// Closes both connections. Everything that the client has sent is answered, if only by an
    /// error.
    fn finish(self) {
        let unpassed = self.main.unpassed();
        let (client, server) = self.main.into_ends();
        if let Some(unpassed) = unpassed {
            let client = OwnedFd::from(client);
            answer_rest(&client, unpassed.request, unpassed.missing);
        } else {
            discard(&client);
        }
        discard(&server);
        if let Some((client, server)) = self.twin.map(Link::into_ends) {
            discard(&client);
            discard(&server);
        }
    }
}

/// Sees everything but the end of a connection.
struct ExceptItsEnd<'a>(&'a mut dyn Observer);

impl Observer for ExceptItsEnd<'_> {
    fn message(&mut self, from: Side, message: &PassedMessage<'_>) {
        self.0.message(from, message);
    }

    fn notice(&mut self, from: Side, at: u64, notice: Notice) {
        if notice != Notice::Closed {
            self.0.notice(from, at, notice);
        }
    }
}

/// Answers the client's requests that were not passed on, which are `request` and those in its
/// socket, after the `missing` bytes of the message that was cut off.
fn answer_rest(client: &OwnedFd, request: Option<Header>, missing: usize) {
    match Unanswered::new() {
        Ok(unanswered) => {
            if let Some(header) = &request {
                unanswered.received(header);
            }
            unanswered.set_missing(missing);
            unanswered.refuse(client);
        }
        Err(error) => log::warn!("the client's last requests get no answer: {error}"),
    }
}

/// Disconnects a client. Returns `false` if no more can be accepted.
fn refuse(listener: &UnixListener, observer: &mut dyn Observer) -> bool {
    match accept(listener) {
        Ok(None) => true,
        Ok(Some(stream)) => {
            observer.notice(Side::Client, now(), Notice::SecondClient);
            refuse_client(stream);
            true
        }
        Err(error) => {
            log::warn!("a second client cannot be disconnected: {error}");
            false
        }
    }
}

/// A source of events.
#[derive(Clone, Copy)]
enum Source {
    Stop,
    Listener,
    Client,
    Server,
    TwinClient,
    TwinServer,
}

/// The events that have occurred.
struct Ready {
    stop: bool,
    listener: bool,
    /// Those of the client and of the server.
    main: [PollFlags; 2],
    twin: [PollFlags; 2],
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            stop: false,
            listener: false,
            main: [PollFlags::empty(); 2],
            twin: [PollFlags::empty(); 2],
        }
    }
}

impl Ready {
    fn add(&mut self, source: Source, events: PollFlags) {
        match source {
            Source::Stop => self.stop = !events.is_empty(),
            Source::Listener => self.listener = !events.is_empty(),
            Source::Client => self.main[0] = events,
            Source::Server => self.main[1] = events,
            Source::TwinClient => self.twin[0] = events,
            Source::TwinServer => self.twin[1] = events,
        }
    }
}

#[cfg(test)]
mod tests;
