//! Framing: turns bytes and descriptors into whole messages. Independent of the socket. It accepts
//! any input, and its only failure is [`FramingError`].
//!
//! The reader takes all complete messages ([`Deframer::next_message`]), then receives into
//! [`Deframer::space`] and reports the received data ([`Deframer::filled`]). One reception can
//! bring several messages. The missing part of a payload is received directly into that payload,
//! and no further byte with it.
//!
//! # Descriptors
//! A Unix stream attaches descriptors to the first byte of the sendmsg(2) that they came with, and
//! no recvmsg(2) returns bytes from beyond a sendmsg with descriptors (unix(7); Linux,
//! `unix_stream_read_generic`). So the descriptors of a reception belong to the message that its
//! last byte belongs to, as long as the client sends no two messages by one sendmsg with
//! descriptors.

use std::ops::Range;
use std::os::fd::OwnedFd;

use peerbar_host::socket_file::descriptors::MAX_DESCRIPTORS;
use thiserror::Error;
use zerocopy::FromBytes;

use crate::wire::{HEADER_SIZE, Header};

/// Bytes that are received at once if no payload has begun. All messages fit, except transfers of
/// more than a page.
const BUFFER_SIZE: usize = 8192;

/// The reason why a stream can no longer be cut into messages.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FramingError {
    /// A header announces a message that is smaller than the header, so the start of the next
    /// message is unknown.
    #[error("a message says it is {0} bytes long, less than its own header of {HEADER_SIZE}")]
    TooShort(u32),
    /// The stream ended inside a message.
    #[error("the stream ends inside a message, {0} bytes before its next part is complete")]
    CutShort(usize),
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// Everything after the header.
    pub payload: Payload,
    /// Its descriptors.
    pub descriptors: Descriptors,
}

/// Everything after a header.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload {
    /// All of it.
    Whole(Vec<u8>),
    /// The payload was longer than the limit, and was discarded.
    TooLong,
}

/// The descriptors of a message.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// At most [`MAX_DESCRIPTORS`], close-on-exec.
    pub kept: Vec<OwnedFd>,
    /// Further descriptors, of file systems that another process or host serves. They are not kept.
    pub foreign: usize,
    /// Further descriptors, which are sockets. They are not kept, and belong to no message.
    pub sockets: usize,
    /// There were more, or this process may have no more. The missing ones are closed.
    pub lost: bool,
}

impl Descriptors {
    /// Returns `true` if no descriptors came.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.foreign == 0 && self.sockets == 0 && !self.lost
    }

    fn add(&mut self, others: Self) {
        let free = MAX_DESCRIPTORS.saturating_sub(self.kept.len());
        self.lost |= others.lost || others.kept.len() > free;
        self.foreign = self.foreign.saturating_add(others.foreign);
        self.sockets = self.sockets.saturating_add(others.sockets);
        self.kept.extend(others.kept.into_iter().take(free));
    }
}

/// Cuts a stream into messages.
#[derive(Debug)]
pub struct Deframer {
    limit: usize,
    buffer: Box<[u8; BUFFER_SIZE]>,
    /// The bytes of the buffer that do not belong to a message yet.
    unread: Range<usize>,
    part: Part,
    /// Descriptors of the message that is being read, from earlier receptions.
    begun: Descriptors,
    /// Descriptors of the last reception, and so of the message that its last byte belongs to.
    latest: Descriptors,
}

/// The part of a message that is being read.
#[derive(Debug)]
enum Part {
    Header,
    /// A payload, and the number of its bytes received so far.
    Payload(Header, Vec<u8>, usize),
    /// A payload that is being discarded, and the number of its bytes still to come.
    Drain(Header, usize),
}

impl Deframer {
    /// Makes a deframer for a new stream. It discards a payload longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: Box::new([0; BUFFER_SIZE]),
            unread: 0..0,
            part: Part::Header,
            begun: Descriptors::default(),
            latest: Descriptors::default(),
        }
    }

    /// Returns the space for the next bytes of the stream. It is not empty if
    /// [`Deframer::next_message`] has returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        if let Part::Payload(_, payload, filled) = &mut self.part {
            return payload.get_mut(*filled..).unwrap_or_default();
        }
        // The bytes of an incomplete header.
        let kept = self.unread.len();
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..kept;
        self.buffer.get_mut(kept..).unwrap_or_default()
    }

    /// Records that the first `count` bytes of [`Deframer::space`] are filled, and the descriptors
    /// that came with them.
    pub fn filled(&mut self, count: usize, descriptors: Descriptors) {
        self.begun
            .add(std::mem::replace(&mut self.latest, descriptors));
        let (filled, most) = match &mut self.part {
            Part::Payload(_, payload, filled) => (filled, payload.len()),
            Part::Header | Part::Drain(..) => (&mut self.unread.end, BUFFER_SIZE),
        };
        *filled = filled.saturating_add(count).min(most);
    }

    /// Returns the next message, if it is complete.
    pub fn next_message(&mut self) -> Result<Option<Message>, FramingError> {
        loop {
            match &mut self.part {
                Part::Header => {
                    let unread = self.buffer.get(self.unread.clone()).unwrap_or_default();
                    let Ok((header, rest)) = Header::read_from_prefix(unread) else {
                        return Ok(None);
                    };
                    let (part, taken) = begin(header, rest, self.limit)?;
                    self.unread.start += HEADER_SIZE + taken;
                    self.part = part;
                }
                Part::Payload(_, payload, filled) if *filled < payload.len() => return Ok(None),
                Part::Drain(_, left) if *left > 0 => {
                    let taken = self.unread.len().min(*left);
                    if taken == 0 {
                        return Ok(None);
                    }
                    self.unread.start += taken;
                    *left -= taken;
                }
                Part::Payload(..) | Part::Drain(..) => return Ok(self.take()),
            }
        }
    }

    /// Returns the header of the message whose payload is being received.
    pub(crate) fn begun(&self) -> Option<&Header> {
        match &self.part {
            Part::Header => None,
            Part::Payload(header, ..) | Part::Drain(header, _) => Some(header),
        }
    }

    /// Returns the number of missing bytes of the next part, header or payload, of a message that
    /// has begun, or 0 if no message has begun.
    pub(crate) fn missing(&self) -> usize {
        match &self.part {
            Part::Header if self.unread.is_empty() => 0,
            Part::Header => HEADER_SIZE.saturating_sub(self.unread.len()),
            Part::Payload(_, payload, filled) => payload.len().saturating_sub(*filled),
            Part::Drain(_, left) => *left,
        }
    }

    /// Reports the end of the stream. Fails if it is inside a message.
    pub fn end(&self) -> Result<(), FramingError> {
        match self.missing() {
            0 => Ok(()),
            missing => Err(FramingError::CutShort(missing)),
        }
    }

    /// Takes the message, if it is complete.
    fn take(&mut self) -> Option<Message> {
        let (header, payload) = match std::mem::replace(&mut self.part, Part::Header) {
            Part::Header => return None,
            Part::Payload(header, payload, _) => (header, Payload::Whole(payload)),
            Part::Drain(header, _) => (header, Payload::TooLong),
        };
        let mut descriptors = std::mem::take(&mut self.begun);
        if self.unread.is_empty() {
            descriptors.add(std::mem::take(&mut self.latest));
        }
        Some(Message {
            header,
            payload,
            descriptors,
        })
    }
}

/// Returns the part that follows `header`, with its bytes from the start of `received`, and the
/// number of those bytes.
fn begin(header: Header, received: &[u8], limit: usize) -> Result<(Part, usize), FramingError> {
    let size = header.size.get();
    let size = usize::try_from(size)
        .ok()
        .and_then(|size| size.checked_sub(HEADER_SIZE))
        .ok_or(FramingError::TooShort(size))?;
    if size > limit {
        return Ok((Part::Drain(header, size), 0));
    }
    let taken = received.len().min(size);
    let mut payload = Vec::with_capacity(size);
    payload.extend_from_slice(received.get(..taken).unwrap_or_default());
    payload.resize(size, 0);
    Ok((Part::Payload(header, payload, taken), taken))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;
    use crate::test_message::message;

    const LIMIT: usize = 1000;

    /// Receives the first bytes of `bytes`, at most `most`, and `count` descriptors. Returns the
    /// rest.
    fn receive<'b>(
        deframer: &mut Deframer,
        bytes: &'b [u8],
        most: usize,
        count: usize,
    ) -> &'b [u8] {
        let space = deframer.space();
        assert!(!space.is_empty());
        let (received, rest) = bytes.split_at(space.len().min(bytes.len()).min(most));
        space[..received.len()].copy_from_slice(received);
        let kept = (0..count).map(|_| File::open("/dev/null").unwrap().into());
        let descriptors = Descriptors {
            kept: kept.collect(),
            ..Descriptors::default()
        };
        deframer.filled(received.len(), descriptors);
        rest
    }

    fn messages(deframer: &mut Deframer) -> Result<Vec<Message>, FramingError> {
        std::iter::from_fn(|| deframer.next_message().transpose()).collect()
    }

    /// Feeds `bytes` in parts of the sizes in `cuts`, in rotation.
    fn feed(
        deframer: &mut Deframer,
        mut bytes: &[u8],
        cuts: &[usize],
    ) -> Result<Vec<Message>, FramingError> {
        let mut all = Vec::new();
        for cut in cuts.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            bytes = receive(deframer, bytes, *cut, 0);
            all.extend(messages(deframer)?);
        }
        Ok(all)
    }

    /// Returns the id of each message and the number of its descriptors.
    fn ids_and_descriptors(messages: &[Message]) -> Vec<(u16, usize)> {
        let each = messages.iter();
        each.map(|message| (message.header.id.get(), message.descriptors.kept.len()))
            .collect()
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_messages(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2 * LIMIT), 1..8),
            cuts in prop::collection::vec(1_usize..5000, 1..20),
        ) {
            let stream: Vec<u8> = (0..)
                .zip(&payloads)
                .flat_map(|(id, payload)| message(id, 0, payload))
                .collect();
            let mut deframer = Deframer::new(LIMIT);
            let messages = feed(&mut deframer, &stream, &cuts).unwrap();
            prop_assert_eq!(messages.len(), payloads.len());
            for (id, (message, payload)) in messages.into_iter().zip(payloads).enumerate() {
                prop_assert_eq!(usize::from(message.header.id.get()), id);
                let expected =
                    if payload.len() > LIMIT { Payload::TooLong } else { Payload::Whole(payload) };
                prop_assert_eq!(message.payload, expected);
            }
            prop_assert_eq!(deframer.end(), Ok(()));
        }

        #[test]
        fn arbitrary_bytes_give_messages_or_the_one_error(
            bytes in prop::collection::vec(any::<u8>(), 0..4096),
            cuts in prop::collection::vec(1_usize..500, 1..20),
        ) {
            match feed(&mut Deframer::new(LIMIT), &bytes, &cuts) {
                Ok(messages) => prop_assert!(messages.len() <= bytes.len() / HEADER_SIZE),
                Err(error) => prop_assert!(matches!(error, FramingError::TooShort(0..16))),
            }
        }

        #[test]
        fn small_sizes_are_refused_and_all_others_taken(size in any::<u32>()) {
            let mut bytes = message(0, 0, &[]);
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            let result = feed(&mut Deframer::new(LIMIT), &bytes, &[HEADER_SIZE]);
            prop_assert_eq!(result.is_err(), size < 16);
        }
    }

    #[test]
    fn huge_payload_is_drained_through_a_small_space() {
        let mut header = message(7, 0, &[]);
        header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut deframer = Deframer::new(LIMIT);
        assert!(feed(&mut deframer, &header, &[16]).unwrap().is_empty());
        let mut left = u32::MAX as usize - HEADER_SIZE;
        let message = loop {
            let space = deframer.space().len().min(left);
            assert!(space > 0 && space <= BUFFER_SIZE);
            left -= space;
            deframer.filled(space, Descriptors::default());
            if let Some(message) = deframer.next_message().unwrap() {
                break message;
            }
        };
        assert_eq!(left, 0);
        assert_eq!(message.header.id.get(), 7);
        assert_eq!(message.payload, Payload::TooLong);
    }

    #[test]
    fn drained_payload_leaves_the_next_message_whole() {
        let stream = [message(1, 0, &[1; 3 * LIMIT]), message(2, 0, &[2; 8])].concat();
        let mut deframer = Deframer::new(LIMIT);
        receive(&mut deframer, &stream, stream.len(), 0);
        let messages = messages(&mut deframer).unwrap();
        assert_eq!(messages[0].payload, Payload::TooLong);
        assert_eq!(messages[1].payload, Payload::Whole(vec![2; 8]));
        assert_eq!(deframer.end(), Ok(()));
    }

    #[test]
    fn one_reception_gives_all_its_messages() {
        let stream: Vec<u8> = (0..100).flat_map(|id| message(id, 0, &[7; 24])).collect();
        let mut deframer = Deframer::new(LIMIT);
        assert!(receive(&mut deframer, &stream, stream.len(), 1).is_empty());
        let got = ids_and_descriptors(&messages(&mut deframer).unwrap());
        let expected: Vec<_> = (0..100).map(|id| (id, usize::from(id == 99))).collect();
        assert_eq!(got, expected, "descriptors belong to the last one");
    }

    #[test]
    fn descriptors_stay_with_the_message_they_came_with() {
        let mut deframer = Deframer::new(LIMIT);
        let first = message(1, 0, &[0; 4]);
        receive(&mut deframer, &first, 16, 2);
        assert!(deframer.next_message().unwrap().is_none());
        receive(&mut deframer, &first[16..], 4, 1);
        let first = deframer.next_message().unwrap().unwrap();
        assert_eq!(first.descriptors.kept.len(), 3);
        assert!(!first.descriptors.lost);
        receive(&mut deframer, &message(2, 0, &[]), 16, 0);
        let second = deframer.next_message().unwrap().unwrap();
        assert!(second.descriptors.kept.is_empty());
    }

    #[test]
    fn descriptors_of_a_begun_message_wait_for_its_end() {
        let stream = [
            message(1, 0, &[0; 8]),
            message(2, 0, &[0; 4]),
            message(3, 0, &[]),
        ]
        .concat();
        // The second reception ends in the header of message 2, in its payload, in the header of message 3.
        for (cut, expected) in [
            (30, [(1, 1), (2, 2), (3, 3)]),
            (42, [(1, 1), (2, 5), (3, 3)]),
            (45, [(1, 1), (2, 0), (3, 5)]),
        ] {
            let mut deframer = Deframer::new(LIMIT);
            let mut bytes = receive(&mut deframer, &stream, 10, 1);
            assert!(deframer.next_message().unwrap().is_none());
            bytes = receive(&mut deframer, bytes, cut - 10, 2);
            let mut all = messages(&mut deframer).unwrap();
            while !bytes.is_empty() {
                bytes = receive(&mut deframer, bytes, 100, 3);
                all.extend(messages(&mut deframer).unwrap());
            }
            assert_eq!(ids_and_descriptors(&all), expected, "{cut}");
        }
    }

    #[test]
    fn descriptors_beyond_the_limit_are_dropped_and_reported() {
        let mut deframer = Deframer::new(LIMIT);
        receive(&mut deframer, &message(1, 0, &[]), 16, MAX_DESCRIPTORS + 1);
        let message = deframer.next_message().unwrap().unwrap();
        assert_eq!(message.descriptors.kept.len(), MAX_DESCRIPTORS);
        assert!(message.descriptors.lost);
    }

    #[test]
    fn end_inside_a_message_is_an_error() {
        let whole = message(1, 0, &[0; 8]);
        for (cut, missing) in [(1, 15), (15, 1), (16, 8), (20, 4)] {
            let mut deframer = Deframer::new(LIMIT);
            feed(&mut deframer, &whole[..cut], &[100]).unwrap();
            assert_eq!(deframer.end(), Err(FramingError::CutShort(missing)));
        }
        let mut deframer = Deframer::new(4);
        feed(&mut deframer, &whole[..20], &[100]).unwrap();
        assert_eq!(deframer.end(), Err(FramingError::CutShort(4)), "drained");
    }
}
