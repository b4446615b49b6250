//! The messages that a client has sent, in their order: received, and not yet dealt with.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use zerocopy::FromBytes;

use crate::framing::{Deframer, FramingError, Message};
use crate::socket;
use crate::unanswered::{Unanswered, wants_answer};
use crate::wire::{HEADER_SIZE, Header};

/// How many bytes are looked at before they are received: some of QEMU's usual requests.
const LOOK_AHEAD: usize = 256;

/// Cuts a client's stream into messages, and keeps account of those that want an answer.
pub(crate) struct Inbox<'a> {
    deframer: Deframer,
    messages: VecDeque<Message>,
    unanswered: Option<&'a Unanswered>,
    /// How many of the next messages that want an answer are listed as unanswered already.
    listed: usize,
    /// Whether the last message was a reply: others are likely to follow.
    replies: bool,
}

/// What a reception brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reception {
    /// All that is there, or a part.
    Bytes {
        /// Nothing more is there.
        is_all: bool,
    },
    /// The end of the stream.
    End,
}

impl<'a> Inbox<'a> {
    /// An inbox for a stream that has just begun. A payload longer than `limit` bytes is thrown away.
    pub(crate) fn new(limit: usize, unanswered: Option<&'a Unanswered>) -> Self {
        if let Some(unanswered) = unanswered {
            unanswered.clear();
        }
        Self {
            deframer: Deframer::new(limit),
            messages: VecDeque::new(),
            unanswered,
            listed: 0,
            replies: false,
        }
    }

    /// Receives what is there, without waiting: [`Errno::AGAIN`] when that is nothing.
    pub(crate) fn receive(&mut self, stream: &UnixStream) -> Result<Reception, Errno> {
        let most = self.look_ahead(stream);
        let space = self.deframer.space();
        let size = space.len().min(most);
        let received = socket::receive(stream, space.get_mut(..size).unwrap_or_default())?;
        if received.bytes == 0 {
            return Ok(Reception::End);
        }
        // A reception also ends where descriptors came, whatever is behind them.
        let is_all = received.bytes < size && received.descriptors.is_empty();
        self.deframer.filled(received.bytes, received.descriptors);
        // An error waits until the messages before it are dealt with: `next_message` finds it again.
        while let Ok(Some(message)) = self.deframer.next_message() {
            self.list(&message.header);
            self.replies = message.header.is_reply();
            self.messages.push_back(message);
        }
        if let Some(unanswered) = self.unanswered {
            unanswered.set_missing(self.deframer.missing());
        }
        Ok(Reception::Bytes { is_all })
    }

    /// Lists the requests at the front of the socket as unanswered, while they are still there: a server that is killed as it receives
    /// them has them nowhere else. How many bytes may be received then. It does not look where a message has been received in part, nor,
    /// as that takes a system call, while the client sends replies.
    fn look_ahead(&mut self, stream: &UnixStream) -> usize {
        let looks = !self.replies && self.deframer.missing() == 0;
        let Some(unanswered) = self.unanswered.filter(|_| looks) else {
            return usize::MAX;
        };
        let mut space = [0; LOOK_AHEAD];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let bytes = recv(stream, &mut space, flags).map_or(0, |(bytes, _)| bytes);
        let mut rest = space.get(..bytes).unwrap_or_default();
        let (mut known, mut whole) = (self.listed, 0);
        while let Ok((header, _)) = Header::read_from_prefix(rest)
            && !header.is_reply()
        {
            match known.checked_sub(usize::from(wants_answer(&header))) {
                Some(left) => known = left,
                None => {
                    unanswered.received(&header);
                    self.listed += 1;
                }
            }
            let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
            let Some(next) = rest.get(size.max(HEADER_SIZE)..) else {
                break;
            };
            whole += rest.len() - next.len();
            rest = next;
        }
        match bytes < LOOK_AHEAD || whole == 0 {
            true => usize::MAX,
            false => whole,
        }
    }

    fn list(&mut self, header: &Header) {
        let Some(unanswered) = self.unanswered.filter(|_| wants_answer(header)) else {
            return;
        };
        match self.listed.checked_sub(1) {
            Some(left) => self.listed = left,
            None => unanswered.received(header),
        }
    }

    /// The next message, if all of it was received.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message>, FramingError> {
        match self.messages.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.deframer.next_message(),
        }
    }

    /// The message with this header, the first one that was not, was dealt with.
    pub(crate) fn answered(&self, header: &Header) {
        if let Some(unanswered) = self.unanswered.filter(|_| wants_answer(header)) {
            unanswered.answered();
        }
    }

    /// The stream has ended. An error if that is inside a message.
    pub(crate) fn end(&self) -> Result<(), FramingError> {
        self.deframer.end()
    }
}
