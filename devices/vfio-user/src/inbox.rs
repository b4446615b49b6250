//! The messages that a client has sent, in order: received, but not yet handled.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use zerocopy::FromBytes;

use crate::framing::{Deframer, FramingError, Message};
use crate::socket;
use crate::unanswered::{Unanswered, wants_answer};
use crate::wire::{HEADER_SIZE, Header};

/// Bytes that are peeked at before they are received: enough for some of QEMU's usual requests.
const LOOK_AHEAD: usize = 256;

/// Cuts a client's stream into messages, and tracks those that need an answer.
pub(crate) struct Inbox<'a> {
    deframer: Deframer,
    messages: VecDeque<Message>,
    unanswered: Option<&'a Unanswered>,
    /// Number of the next messages that need an answer and are already listed as unanswered.
    listed: usize,
    /// The last message was a reply, so more replies are likely to follow.
    replies: bool,
}

/// The whole messages at the front of the socket.
#[derive(Clone, Copy)]
struct Ahead {
    bytes: usize,
    /// The socket holds no further bytes.
    is_all: bool,
}

/// The result of a reception.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reception {
    /// All bytes in the socket, or a part.
    Bytes {
        /// The socket holds no further bytes.
        is_all: bool,
    },
    /// The end of the stream.
    End,
}

impl<'a> Inbox<'a> {
    /// Makes an inbox for a new stream. It discards a payload longer than `limit` bytes.
    pub(crate) fn new(limit: usize, unanswered: Option<&'a Unanswered>) -> Self {
        Self {
            deframer: Deframer::new(limit),
            messages: VecDeque::new(),
            unanswered,
            listed: 0,
            replies: false,
        }
    }

    /// Receives the available bytes without waiting. Fails with [`Errno::AGAIN`] if there are none.
    pub(crate) fn receive(&mut self, stream: &UnixStream) -> Result<Reception, Errno> {
        let ahead = self.look_ahead(stream)?;
        let space = self.deframer.space();
        let size = space.len();
        let most = ahead.map_or(size, |ahead| ahead.bytes.min(size));
        let received = socket::receive(stream, space.get_mut(..most).unwrap_or_default())?;
        if received.bytes == 0 {
            return Ok(Reception::End);
        }
        // A reception also ends at descriptors, even if more bytes follow.
        let is_all = ahead.map_or(received.bytes < size, |ahead| ahead.is_all);
        let is_all = is_all && received.descriptors.is_empty();
        self.deframer.filled(received.bytes, received.descriptors);
        // An error waits until the messages before it are handled: `next_message` returns it again.
        while let Ok(Some(message)) = self.deframer.next_message() {
            self.list(&message.header);
            self.replies = message.header.is_reply();
            self.messages.push_back(message);
        }
        if let Some(unanswered) = self.unanswered {
            let begun = self.deframer.begun().filter(|header| wants_answer(header));
            // If it is listed, it is the first that is listed and not received.
            if let (Some(header), 0) = (begun, self.listed) {
                unanswered.received(header);
                self.listed = 1;
            }
            unanswered.set_missing(self.deframer.missing());
        }
        Ok(Reception::Bytes { is_all })
    }

    /// Lists the requests at the front of the socket as unanswered while they are still in the
    /// socket: if the server is killed while it receives them, no other record of them exists. Does
    /// not look if a message has been received in part, nor, because it costs a system call, while
    /// the client sends replies. Returns `None` if it has not seen a whole message.
    fn look_ahead(&mut self, stream: &UnixStream) -> Result<Option<Ahead>, Errno> {
        let looks = !self.replies && self.deframer.missing() == 0;
        let Some(unanswered) = self.unanswered.filter(|_| looks) else {
            return Ok(None);
        };
        let mut space = [0; LOOK_AHEAD];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let (seen, _) = recv(stream, &mut space, flags)?;
        let mut rest = space.get(..seen).unwrap_or_default();
        let (mut known, mut bytes) = (self.listed, 0);
        while let Ok((header, _)) = Header::read_from_prefix(rest) {
            if header.is_reply() {
                break;
            }
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
            bytes += rest.len() - next.len();
            rest = next;
        }
        let is_all = seen < LOOK_AHEAD && rest.is_empty();
        Ok((bytes > 0).then_some(Ahead { bytes, is_all }))
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

    /// Returns the next message, if it is complete.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message>, FramingError> {
        match self.messages.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.deframer.next_message(),
        }
    }

    /// Records that the message with this header has been handled. It was the first that had not
    /// been.
    pub(crate) fn answered(&self, header: &Header) {
        if let Some(unanswered) = self.unanswered.filter(|_| wants_answer(header)) {
            unanswered.answered();
        }
    }

    /// Reports the end of the stream. Fails if it is inside a message.
    pub(crate) fn end(&self) -> Result<(), FramingError> {
        self.deframer.end()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::test_message::message;
    use crate::wire::flags;

    proptest! {
        /// The client sends `messages` in parts of the sizes in `cuts`. After each part some are
        /// received, and some of those are answered.
        #[test]
        fn list_has_each_request_received_and_not_answered(
            messages in prop::collection::vec(
                (prop::sample::select(vec![0, 0, flags::NO_REPLY, flags::REPLY]), 0_usize..700),
                1..40,
            ),
            cuts in prop::collection::vec((300_usize..3000, any::<bool>(), 0_usize..5), 1..10),
        ) {
            let (mut client, server) = UnixStream::pair().unwrap();
            let unanswered = Unanswered::new().unwrap();
            let mut inbox = Inbox::new(500, Some(&unanswered));
            let mut stream = Vec::new();
            // The id of each message that needs an answer, and the offset in the stream at which
            // its header ends.
            let mut wanted = Vec::new();
            for (id, (flags, payload)) in (0..).zip(&messages) {
                let header_end = stream.len() + HEADER_SIZE;
                stream.extend(message(id, *flags, &vec![0xff; *payload]));
                if *flags == 0 {
                    wanted.push((id, header_end));
                }
            }
            let (mut sent, mut received, mut answered) = (0, 0, 0);
            for (cut, receives, answers) in cuts.iter().cycle() {
                if sent == stream.len() && received == sent && answered == messages.len() {
                    break;
                }
                let end = stream.len().min(sent + cut);
                client.write_all(&stream[sent..end]).unwrap();
                sent = end;
                while *receives || sent == stream.len() {
                    match inbox.receive(&server) {
                        Ok(Reception::Bytes { .. }) => {}
                        Err(Errno::AGAIN) => break,
                        other => panic!("{other:?}"),
                    }
                    let left = rustix::io::ioctl_fionread(&server).unwrap();
                    received = sent - usize::try_from(left).unwrap();
                    check_list(&unanswered, &wanted, received, answered)?;
                }
                for _ in 0..answers + usize::from(sent == stream.len()) {
                    let Some(message) = inbox.next_message().unwrap() else {
                        break;
                    };
                    prop_assert_eq!(usize::from(message.header.id.get()), answered);
                    inbox.answered(&message.header);
                    answered += 1;
                }
                check_list(&unanswered, &wanted, received, answered)?;
            }
            prop_assert!(unanswered.ids().is_empty());
        }
    }

    /// Checks that the list begins with all requests whose header is within the first `received`
    /// bytes, except those of the first `answered` messages. Requests that are still in the socket
    /// may follow.
    fn check_list(
        unanswered: &Unanswered,
        wanted: &[(u16, usize)],
        received: usize,
        answered: usize,
    ) -> Result<(), TestCaseError> {
        let open = wanted.iter().filter(|(id, _)| usize::from(*id) >= answered);
        let least = open.clone().filter(|(_, end)| *end <= received).count();
        let open: Vec<u16> = open.map(|(id, _)| *id).collect();
        let listed = unanswered.ids();
        prop_assert!(
            listed.len() >= least,
            "{listed:?} of {open:?}, {least} at least"
        );
        prop_assert_eq!(&listed, &open[..listed.len()]);
        Ok(())
    }
}
