//! The connection to a server, shared by the threads that call it and the one that receives.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::little_endian::{U16, U32};

use crate::framing::{Descriptors, Payload};
use crate::pending::{Arrival, Pending, Reply};
use crate::reply;
use crate::request_error::RequestError;
use crate::wire::{HEADER_SIZE, Header, flags};
use crate::writer::Writer;

use super::{CallError, RemoteEnd};

/// The number of an [`Arrival`] that is a reply.
const REPLY: usize = 0;
/// The number of an [`Arrival`] that ends a write's wait for its reply.
const GIVE_WAY: usize = 1;

/// The command and the contents of a message to the server.
pub(super) struct Request<'a> {
    pub(super) command: u16,
    pub(super) payload: [&'a [u8]; 2],
    pub(super) descriptors: &'a [BorrowedFd<'a>],
}

/// The contents of a reply.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Descriptors,
}

/// A session with a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<UnixStream>,
    writer: Writer,
    pending: Pending,
    /// The longest wait for a reply.
    time_out: Duration,
    end: OnceLock<RemoteEnd>,
    calls: Calls,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, time_out: Duration) -> Self {
        let stream = Arc::new(stream);
        Self {
            writer: Writer::new(stream.clone(), time_out),
            stream,
            pending: Pending::new(),
            time_out,
            end: OnceLock::new(),
            calls: Calls::default(),
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the reason for which the session has ended, if it has.
    pub(super) fn ended(&self) -> Option<RemoteEnd> {
        self.end.get().copied()
    }

    /// Ends the session: all calls fail with [`CallError::Gone`], now and later. The first reason
    /// counts.
    pub(super) fn end(&self, reason: RemoteEnd) {
        let _ = self.end.set(reason);
        // Fails only if the other side has closed the socket already.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.pending.close();
    }

    /// Sends a command and waits for its reply. A server that does not answer in time loses the
    /// session, since its later answers cannot be relied on.
    pub(super) fn call(&self, request: Request<'_>) -> Result<Answered, CallError> {
        let _turn = self.begin();
        self.call_apart(request)
    }

    /// Like [`Connection::call`], but no [`PostedWrites`] waits for the call. If the client waits for
    /// it, the caller holds a [`Turn`].
    pub(super) fn call_apart(&self, request: Request<'_>) -> Result<Answered, CallError> {
        let answered = self.call_within(request, self.time_out);
        if answered.as_ref().err() == Some(&CallError::TimedOut) {
            self.end(RemoteEnd::NotAnswering(self.time_out));
        }
        answered
    }

    /// Sends a command and waits for its reply at most for this time. No [`PostedWrites`] waits for
    /// the call, because the client does not wait for it either.
    pub(super) fn call_within(
        &self,
        request: Request<'_>,
        limit: Duration,
    ) -> Result<Answered, CallError> {
        let (sender, arrivals) = channel();
        self.send(&request, &sender)?;
        let (_, reply) = arrivals
            .recv_timeout(limit)
            .map_err(|_| CallError::TimedOut)?;
        answered(request.command, reply)
    }

    /// Begins a call for which the client waits.
    pub(super) fn begin(&self) -> Turn<'_> {
        self.calls.begin(None)
    }

    /// Sends a command and waits for its reply, unless a [`PostedWrites`] demands that it is posted.
    /// Returns the reply that is still to come.
    pub(super) fn post(&self, request: Request<'_>) -> Result<Option<PostedReply>, CallError> {
        let (sender, arrivals) = channel();
        let turn = self.calls.begin(Some(&sender));
        self.send(&request, &sender)?;
        let command = request.command;
        let has_come = !turn.is_posted && self.wait_for_write(command, &arrivals)?;
        Ok((!has_come).then_some(PostedReply { command, arrivals }))
    }

    /// Returns `false` if the write gives way before its reply has come.
    fn wait_for_write(
        &self,
        command: u16,
        arrivals: &Receiver<Arrival>,
    ) -> Result<bool, CallError> {
        match arrivals.recv_timeout(self.time_out) {
            Ok((GIVE_WAY, _)) => Ok(false),
            Ok((_, reply)) => answered(command, reply).map(|_| true),
            Err(_) => {
                self.end(RemoteEnd::NotAnswering(self.time_out));
                Err(CallError::TimedOut)
            }
        }
    }

    fn send(&self, request: &Request<'_>, sender: &Sender<Arrival>) -> Result<(), CallError> {
        let id = self.pending.register(REPLY, sender).map_err(call_error)?;
        let header = header(id, request.command, flags::COMMAND, 0, request.payload);
        let sent = self
            .writer
            .send(&header, request.payload, request.descriptors);
        sent.map_err(|_| CallError::Gone)
    }

    /// Answers a command of the server.
    pub(super) fn answer(&self, asked: &Header, result: Result<[&[u8]; 2], Errno>) {
        if asked.no_reply() {
            return;
        }
        let (payload, flags, error) = match result {
            Ok(payload) => (payload, flags::REPLY, 0),
            Err(error) => {
                let errno = error.raw_os_error().unsigned_abs();
                ([[].as_slice(); 2], flags::REPLY | flags::ERROR, errno)
            }
        };
        let header = header(asked.id.get(), asked.command.get(), flags, error, payload);
        // A failure ends the session, and the thread that receives notices that.
        let _ = self.writer.send(&header, payload, &[]);
    }

    /// Passes a reply to the call that waits for it.
    pub(super) fn complete(&self, reply: Reply) {
        let id = reply.header.id;
        if !self.pending.complete(reply) {
            log::debug!("no call waits for the server's reply with id {id}");
        }
    }

    /// Lets writes return without their replies from now on, then waits for at most `limit` until
    /// the calls that have begun before are done. Returns `None` if they are not.
    pub(super) fn post_writes(&self, limit: Duration) -> Option<PostedWrites<'_>> {
        let posted = PostedWrites { calls: &self.calls };
        self.calls.drain(Instant::now() + limit).then_some(posted)
    }
}

/// The reply to a posted command.
#[derive(Debug)]
pub(super) struct PostedReply {
    command: u16,
    arrivals: Receiver<Arrival>,
}

impl PostedReply {
    /// Returns `true` if the reply has come and refuses the command.
    pub(super) fn is_refusal(&self) -> bool {
        let replies = self.arrivals.try_iter();
        let mut replies = replies.filter(|(number, _)| *number == REPLY);
        let is_refusal = |reply| {
            let answered = answered(self.command, reply);
            matches!(answered, Err(CallError::Refused(_)))
        };
        replies.any(|(_, reply)| is_refusal(reply))
    }
}

/// Returns the contents of a reply to `command`.
fn answered(command: u16, reply: Result<Reply, RequestError>) -> Result<Answered, CallError> {
    let reply = reply.map_err(call_error)?;
    reply::success(&reply, command).map_err(call_error)?;
    match reply.payload {
        Payload::Whole(payload) => Ok(Answered {
            payload,
            descriptors: reply.descriptors,
        }),
        Payload::TooLong => Err(CallError::Malformed),
    }
}

fn call_error(error: RequestError) -> CallError {
    match error {
        RequestError::MALFORMED => CallError::Malformed,
        RequestError::Refused(errno) => CallError::Refused(errno),
        RequestError::TimedOut => CallError::TimedOut,
        RequestError::Gone | RequestError::Unserved | RequestError::Stopped => CallError::Gone,
    }
}

fn header(id: u16, command: u16, flags: u32, error: u32, payload: [&[u8]; 2]) -> Header {
    let size = payload.iter().map(|part| part.len()).sum::<usize>();
    let size = size.saturating_add(HEADER_SIZE);
    Header {
        id: U16::new(id),
        command: U16::new(command),
        // A message is at most a full transfer.
        size: U32::new(u32::try_from(size).unwrap_or(u32::MAX)),
        flags: U32::new(flags),
        error: U32::new(error),
    }
}

/// The calls in progress that the client may be waiting for.
#[derive(Debug, Default)]
struct Calls {
    state: Mutex<CallsState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct CallsState {
    next: u64,
    /// The calls in progress, in the order in which they began. Writes have the sender by which
    /// their wait can be ended.
    in_progress: BTreeMap<u64, Option<Sender<Arrival>>>,
    /// Number of [`PostedWrites`].
    posting: usize,
}

impl Calls {
    fn begin(&self, write: Option<&Sender<Arrival>>) -> Turn<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.in_progress.insert(number, write.cloned());
        Turn {
            calls: self,
            number,
            is_posted: state.posting > 0,
        }
    }

    /// Begins to post writes, and waits until the calls that have begun before have ended. Returns
    /// `false` if they have not by `deadline`.
    fn drain(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        state.posting += 1;
        for write in state.in_progress.values().flatten() {
            // Fails if it has its reply.
            let _ = write.send((GIVE_WAY, Err(RequestError::Stopped)));
        }
        let begun = state.next;
        let is_busy = |state: &mut CallsState| state.in_progress.range(..begun).next().is_some();
        let waited = self.ended.wait_while_until(&mut state, is_busy, deadline);
        !waited.timed_out()
    }
}

/// A call in progress for which the client may be waiting.
#[derive(Debug)]
pub struct Turn<'c> {
    calls: &'c Calls,
    number: u64,
    /// Writes need not wait for their replies.
    is_posted: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.calls.state.lock().in_progress.remove(&self.number);
        self.calls.ended.notify_all();
    }
}

/// Until this is dropped, writes to the server's regions return before their replies.
#[derive(Debug)]
pub struct PostedWrites<'c> {
    calls: &'c Calls,
}

impl Drop for PostedWrites<'_> {
    fn drop(&mut self) {
        self.calls.state.lock().posting -= 1;
    }
}
