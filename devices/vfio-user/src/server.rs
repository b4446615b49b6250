//! One session: from the connection of a client to its end.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerbar_host::eventfd::EventFd;
use peerbar_host::socket_file::descriptors::discard;
use rustix::io::Errno;
use thiserror::Error;
use zerocopy::little_endian::U32;

use crate::accept::accept;
use crate::channel::Channel;
use crate::client::Client;
use crate::device::Device;
use crate::dispatch::dispatch;
use crate::framing::{FramingError, Message, Payload};
use crate::inbox::{Inbox, Reception};
use crate::irqs::Unmasking;
use crate::pending::Reply;
use crate::readiness;
use crate::request::{Answer, ClientCommand};
use crate::stop::Stop;
use crate::unanswered::Unanswered;
use crate::version::{self, MAX_TRANSFER};
use crate::wire::{HEADER_SIZE, Header, command, flags};
use crate::writer::{Closed, Writer};

/// The longest payload that is parsed: a full transfer and its description.
pub(crate) const PAYLOAD_LIMIT: usize = MAX_TRANSFER as usize + 4096;

/// The options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ends the session, as if the client had left.
    pub stop: Stop,
    /// The longest wait of a call of [`Client`] for its next reply. 30 s by default.
    pub request_time_out: Duration,
    /// The longest wait of a message for free space in the socket buffer before the session ends.
    /// 10 s by default.
    pub send_time_out: Duration,
}

impl Options {
    /// Makes options with the default time-outs, and with `stop` to end the session.
    pub fn new(stop: Stop) -> Self {
        Self {
            stop,
            request_time_out: Duration::from_secs(30),
            send_time_out: Duration::from_secs(10),
        }
    }
}

/// The reason for which a session ended, other than a hang-up or a stop.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The client's stream is not a sequence of messages.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// The socket failed.
    #[error("receiving from the client failed")]
    Receive(#[source] Errno),
    /// The socket failed.
    #[error("sending to the client failed")]
    Send(#[source] Errno),
    /// The client does not read. The time is [`Options::send_time_out`].
    #[error("the client has not read its messages for {0:?}")]
    NotReading(Duration),
}

/// Serves `device` to the client at the other end of `stream` until the client hangs up or
/// [`Options::stop`] is triggered. In every case, the device is detached if it was attached, and
/// the stream is closed.
pub fn serve(
    stream: UnixStream,
    device: &mut dyn Device,
    options: &Options,
) -> Result<(), SessionError> {
    serve_alone(stream, device, options, None, None)
}

/// Like [`serve`], but disconnects clients that connect to `listener` during the session, and lists
/// the client's requests in `unanswered`.
pub(crate) fn serve_alone(
    stream: UnixStream,
    device: &mut dyn Device,
    options: &Options,
    listener: Option<&UnixListener>,
    unanswered: Option<&Unanswered>,
) -> Result<(), SessionError> {
    let stream = Arc::new(stream);
    let mut session = Session {
        writer: Arc::new(Writer::new(Arc::clone(&stream), options.send_time_out)),
        stream,
        device,
        options,
        listener,
        attention: Arc::new(EventFd::new().map_err(SessionError::Receive)?),
        client: None,
        unmasking: None,
        drained: false,
    };
    let mut inbox = Inbox::new(PAYLOAD_LIMIT, unanswered);
    let outcome = session.run(&mut inbox);
    session.end(&mut inbox, outcome)
}

struct Session<'a> {
    stream: Arc<UnixStream>,
    writer: Arc<Writer>,
    device: &'a mut dyn Device,
    options: &'a Options,
    listener: Option<&'a UnixListener>,
    attention: Arc<EventFd>,
    /// The client, or `None` until a version is agreed upon.
    client: Option<Client>,
    unmasking: Option<Unmasking>,
    /// The last reception emptied the socket.
    drained: bool,
}

impl Session<'_> {
    fn run(&mut self, inbox: &mut Inbox<'_>) -> Result<(), SessionError> {
        while let Some(message) = self.next_message(inbox)? {
            let header = message.header;
            if header.is_reply() {
                self.complete(message);
            } else if let Err(Closed) = self.answer(message) {
                break;
            }
            inbox.answered(&header);
        }
        Ok(())
    }

    /// Returns `None` if the client has hung up or is disconnected, or after a stop.
    fn next_message(&mut self, inbox: &mut Inbox<'_>) -> Result<Option<Message>, SessionError> {
        while !self.options.stop.is_triggered() && !self.writer.is_disconnected() {
            if let Some(message) = inbox.next_message()? {
                return Ok(Some(message));
            }
            if std::mem::take(&mut self.drained) {
                self.wait().map_err(SessionError::Receive)?;
            }
            match inbox.receive(&self.stream) {
                Err(Errno::AGAIN) => self.drained = true,
                Err(Errno::INTR) => {}
                // The session of a client that has left data unread ends like this.
                Err(Errno::CONNRESET) => break,
                Err(error) => return Err(SessionError::Receive(error)),
                Ok(Reception::End) => {
                    inbox.end()?;
                    break;
                }
                Ok(Reception::Bytes { is_all }) => self.drained = is_all,
            }
        }
        Ok(None)
    }

    fn wait(&mut self) -> Result<(), Errno> {
        let (stop, stream) = (self.options.stop.as_fd(), self.stream.as_fd());
        let unmasking = self.unmasking.as_ref();
        let unmasked = unmasking.map_or(stop, |unmasking| unmasking.event.as_fd());
        let listener = self.listener.map_or(stop, AsFd::as_fd);
        // The listener is polled before the stream: a client that connects after this one has hung up is not disconnected.
        let attention = self.attention.as_fd();
        let [connection, _, unmasked, woken, message] =
            readiness::wait([listener, stop, unmasked, attention, stream])?;
        if woken {
            self.attention.take();
            self.device.woken();
        }
        if unmasked && unmasking.is_some_and(|unmasking| !unmasking.carry_out(self.device)) {
            log::warn!(
                "an eventfd of the client's for unmasking is always signalled: it is not waited for any more"
            );
            self.unmasking = None;
        }
        if let Some(listener) = self.listener.filter(|_| connection && !message) {
            match accept(listener) {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    log::warn!("a second client is disconnected: a device serves one at a time");
                    refuse_client(stream);
                }
                Err(error) => {
                    log::warn!("a second client cannot be disconnected: {error}");
                    self.listener = None;
                }
            }
        }
        Ok(())
    }

    fn complete(&self, message: Message) {
        let header = message.header;
        let reply = Reply {
            header,
            payload: message.payload,
            descriptors: message.descriptors,
        };
        if !self
            .client
            .as_ref()
            .is_some_and(|client| client.complete(reply))
        {
            log::debug!("no call waits for the reply with id {}", header.id);
        }
    }

    fn answer(&mut self, message: Message) -> Result<(), Closed> {
        let header = message.header;
        let command = header.command.get();
        let result = match &message.payload {
            _ if !header.is_command() => Err(Errno::INVAL),
            Payload::TooLong => Err(Errno::MSGSIZE),
            Payload::Whole(payload) if self.client.is_some() => {
                let request = ClientCommand {
                    command,
                    payload,
                    descriptors: message.descriptors,
                };
                dispatch(self.device, &mut self.unmasking, request)
            }
            Payload::Whole(payload) if command == command::VERSION && !header.no_reply() => {
                return self.agree(&header, payload);
            }
            Payload::Whole(_) => Err(Errno::INVAL),
        };
        reply(&self.writer, self.writer.deadline(), &header, result)
    }

    fn agree(&mut self, header: &Header, payload: &[u8]) -> Result<(), Closed> {
        let capabilities = match version::parse(payload) {
            Ok(capabilities) => capabilities,
            Err(error) => return reply(&self.writer, self.writer.deadline(), header, Err(error)),
        };
        reply(
            &self.writer,
            self.writer.deadline(),
            header,
            Ok(version::answer(&capabilities).into()),
        )?;
        let client = Client::new(Channel::new(
            Arc::clone(&self.writer),
            self.attention.clone(),
            self.options.request_time_out,
            &capabilities,
        ));
        self.client = Some(client.clone());
        self.device.attached(client);
        Ok(())
    }

    /// Closes everything before the device is notified: its threads may wait for replies that will
    /// not come.
    fn end(
        self,
        inbox: &mut Inbox<'_>,
        outcome: Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        if let Some(client) = &self.client {
            client.close();
        }
        refuse(&self.stream, &self.writer, inbox, Errno::NODEV);
        // Fails only if the other side has closed the socket already.
        let _ = self.stream.shutdown(Shutdown::Both);
        let failure = self.writer.close();
        if self.client.is_some() {
            self.device.detached();
        }
        match failure {
            None | Some(Errno::PIPE | Errno::CONNRESET) => outcome,
            Some(Errno::TIMEDOUT) => Err(SessionError::NotReading(self.options.send_time_out)),
            Some(error) => Err(SessionError::Send(error)),
        }
    }
}

/// Ends the session of a client that has not begun one.
pub(crate) fn refuse_client(stream: UnixStream) {
    let stream = Arc::new(stream);
    let writer = Writer::new(Arc::clone(&stream), Duration::ZERO);
    refuse(
        &stream,
        &writer,
        &mut Inbox::new(PAYLOAD_LIMIT, None),
        Errno::BUSY,
    );
}

/// Answers with `error` all messages that the client has sent. Later sends fail on the client's
/// side.
///
/// QEMU waits for the answer to a request that it has sent, even if the connection is closed during
/// the wait. It holds its own lock, so the guest is stopped (hw/vfio-user/proxy.c,
/// `vfio_user_send_wait`). A Unix socket that is shut down for reading accepts no more data, but
/// the data that it has accepted can still be received. So every request gets an answer, unless the
/// client takes longer to read them than the time-out of one message.
fn refuse(stream: &UnixStream, writer: &Writer, inbox: &mut Inbox<'_>, error: Errno) {
    // Fails only if the other side has closed the socket already.
    let _ = stream.shutdown(Shutdown::Read);
    let deadline = writer.deadline();
    let mut outcome = Ok(());
    while outcome.is_ok() {
        while let (Ok(()), Ok(Some(message))) = (&outcome, inbox.next_message()) {
            let header = &message.header;
            if header.is_command() {
                outcome = reply(writer, deadline, header, Err(error));
            }
            inbox.answered(header);
        }
        match inbox.receive(stream) {
            Ok(Reception::Bytes { .. }) | Err(Errno::INTR) => {}
            Ok(Reception::End) => return,
            Err(_) => break,
        }
    }
    discard(stream);
}

fn reply(
    writer: &Writer,
    deadline: Instant,
    asked: &Header,
    result: Result<Answer<'_>, Errno>,
) -> Result<(), Closed> {
    if let Err(error) = &result {
        log::debug!("command {} refused: {error}", asked.command);
    }
    if asked.no_reply() {
        return Ok(());
    }
    let (answer, flags, error) = match result {
        Ok(answer) => (answer, flags::REPLY, 0),
        Err(error) => {
            let errno = error.raw_os_error().unsigned_abs();
            (Answer::default(), flags::REPLY | flags::ERROR, errno)
        }
    };
    let size = HEADER_SIZE.saturating_add(answer.payload.len());
    let header = Header {
        id: asked.id,
        command: asked.command,
        // An answer is at most a full transfer.
        size: U32::new(u32::try_from(size).unwrap_or(u32::MAX)),
        flags: U32::new(flags),
        error: U32::new(error),
    };
    let descriptors = answer.descriptor.as_slice();
    writer.send_by(&header, [&answer.payload, &[]], descriptors, deadline)
}
