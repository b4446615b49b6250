//! Bytes and descriptors in, whole messages out. Knows no socket, and takes any input without failing in any other way
//! than [`FramingError`].
//!
//! The reader asks [`Deframer::space`] where the next bytes belong and never reads beyond it: first exactly a header,
//! then exactly its payload. So the descriptors that come along belong to the message that is being read, and to no
//! other.

use std::os::fd::OwnedFd;

use thiserror::Error;
use zerocopy::{FromZeros, IntoBytes};

use crate::wire::{HEADER_SIZE, Header};

/// How many descriptors one message may carry. QEMU's own limit is the same.
pub const MAX_DESCRIPTORS: usize = 16;

/// How many bytes of an unwanted payload are read at a time.
const DRAIN_SIZE: usize = 4096;

/// Why a stream can no longer be cut into messages.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FramingError {
    /// A header announces a message that is smaller than the header: where the next one begins is unknown.
    #[error("a message says it is {0} bytes long, less than its own header of {HEADER_SIZE}")]
    TooShort(u32),
    /// The stream ended inside a message.
    #[error("the stream ends inside a message, {0} bytes before its next part is complete")]
    CutShort(usize),
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// What it is.
    pub header: Header,
    /// What came after the header.
    pub payload: Payload,
    /// The descriptors that came along, at most [`MAX_DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
    /// There were more descriptors, or this process may have no more. Those that are missing are closed.
    pub descriptors_lost: bool,
}

/// What came after a header.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload {
    /// All of it.
    Whole(Vec<u8>),
    /// It was longer than the limit, and was thrown away.
    TooLong,
}

/// Cuts a stream into messages.
#[derive(Debug)]
pub struct Deframer {
    limit: usize,
    header: Header,
    part: Part,
    /// How many bytes of the part are there.
    filled: usize,
    descriptors: Vec<OwnedFd>,
    descriptors_lost: bool,
}

/// Which part of a message is being read.
#[derive(Debug)]
enum Part {
    Header,
    Payload(Vec<u8>),
    /// A payload nobody will see: where it goes, and how much of it is still to come.
    Drain(Box<[u8; DRAIN_SIZE]>, usize),
}

impl Deframer {
    /// A deframer for a stream that has just begun. A payload longer than `limit` bytes is thrown away.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            header: Header::new_zeroed(),
            part: Part::Header,
            filled: 0,
            descriptors: Vec::new(),
            descriptors_lost: false,
        }
    }

    /// Where the next bytes of the stream belong. Never empty.
    pub fn space(&mut self) -> &mut [u8] {
        let part = match &mut self.part {
            Part::Header => self.header.as_mut_bytes(),
            Part::Payload(payload) => payload.as_mut_slice(),
            Part::Drain(scratch, left) => {
                let count = DRAIN_SIZE.min(*left);
                return scratch.get_mut(..count).unwrap_or_default();
            }
        };
        part.get_mut(self.filled..).unwrap_or_default()
    }

    /// Takes note that the first `count` bytes of [`Deframer::space`] are filled, and of the descriptors that came with
    /// them. Returns the message that this completes.
    pub fn filled(
        &mut self,
        count: usize,
        descriptors: Vec<OwnedFd>,
        lost: bool,
    ) -> Result<Option<Message>, FramingError> {
        let space = self.space().len();
        self.keep(descriptors, lost);
        match &mut self.part {
            Part::Drain(_, left) => *left = left.saturating_sub(count),
            Part::Header | Part::Payload(_) => self.filled = self.filled.saturating_add(count),
        }
        let drained = matches!(self.part, Part::Drain(_, left) if left > 0);
        if count < space || drained {
            return Ok(None);
        }
        self.part_complete()
    }

    /// The stream has ended. An error if that is inside a message.
    pub fn end(&mut self) -> Result<(), FramingError> {
        match &self.part {
            Part::Header if self.filled == 0 => Ok(()),
            Part::Drain(_, left) => Err(FramingError::CutShort(*left)),
            Part::Header | Part::Payload(_) => Err(FramingError::CutShort(self.space().len())),
        }
    }

    fn keep(&mut self, descriptors: Vec<OwnedFd>, lost: bool) {
        let room = MAX_DESCRIPTORS.saturating_sub(self.descriptors.len());
        self.descriptors_lost |= lost || descriptors.len() > room;
        self.descriptors.extend(descriptors.into_iter().take(room));
    }

    fn part_complete(&mut self) -> Result<Option<Message>, FramingError> {
        self.filled = 0;
        let payload = match std::mem::replace(&mut self.part, Part::Header) {
            Part::Header => match self.payload_size()? {
                0 => Payload::Whole(Vec::new()),
                size => {
                    self.part = self.part_for(size);
                    return Ok(None);
                }
            },
            Part::Payload(payload) => Payload::Whole(payload),
            Part::Drain(..) => Payload::TooLong,
        };
        Ok(Some(Message {
            header: self.header,
            payload,
            descriptors: std::mem::take(&mut self.descriptors),
            descriptors_lost: std::mem::take(&mut self.descriptors_lost),
        }))
    }

    fn payload_size(&self) -> Result<usize, FramingError> {
        let size = self.header.size.get();
        usize::try_from(size)
            .ok()
            .and_then(|size| size.checked_sub(HEADER_SIZE))
            .ok_or(FramingError::TooShort(size))
    }

    fn part_for(&self, size: usize) -> Part {
        if size <= self.limit {
            Part::Payload(vec![0; size])
        } else {
            Part::Drain(Box::new([0; DRAIN_SIZE]), size)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;
    use zerocopy::little_endian::{U16, U32};

    use super::*;

    const LIMIT: usize = 1000;

    fn message(id: u16, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            id: U16::new(id),
            command: U16::new(9),
            size: U32::new(u32::try_from(HEADER_SIZE + payload.len()).unwrap()),
            flags: U32::new(0),
            error: U32::new(0),
        };
        [header.as_bytes(), payload].concat()
    }

    /// Feeds `bytes` in pieces whose sizes come from `cuts`, round and round.
    fn feed(
        deframer: &mut Deframer,
        mut bytes: &[u8],
        cuts: &[usize],
    ) -> Result<Vec<Message>, FramingError> {
        let mut messages = Vec::new();
        for cut in cuts.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let space = deframer.space();
            assert!(!space.is_empty());
            let count = space.len().min(bytes.len()).min(*cut);
            let (piece, rest) = bytes.split_at(count);
            space[..count].copy_from_slice(piece);
            bytes = rest;
            messages.extend(deframer.filled(count, Vec::new(), false)?);
        }
        Ok(messages)
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        (0..count)
            .map(|_| File::open("/dev/null").unwrap().into())
            .collect()
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_messages(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2 * LIMIT), 1..8),
            cuts in prop::collection::vec(1_usize..500, 1..20),
        ) {
            let stream: Vec<u8> = (0..)
                .zip(&payloads)
                .flat_map(|(id, payload)| message(id, payload))
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
            let mut bytes = message(0, &[]);
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            let result = feed(&mut Deframer::new(LIMIT), &bytes, &[HEADER_SIZE]);
            prop_assert_eq!(result.is_err(), size < 16);
        }
    }

    #[test]
    fn a_huge_payload_is_drained_through_a_small_space() {
        let mut header = message(7, &[]);
        header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut deframer = Deframer::new(LIMIT);
        assert!(feed(&mut deframer, &header, &[16]).unwrap().is_empty());
        let mut left = u32::MAX as usize - HEADER_SIZE;
        let message = loop {
            let space = deframer.space().len();
            assert!(space > 0 && space <= DRAIN_SIZE);
            left -= space;
            if let Some(message) = deframer.filled(space, Vec::new(), false).unwrap() {
                break message;
            }
        };
        assert_eq!(left, 0);
        assert_eq!(message.header.id.get(), 7);
        assert_eq!(message.payload, Payload::TooLong);
    }

    #[test]
    fn descriptors_stay_with_the_message_they_came_with() {
        let mut deframer = Deframer::new(LIMIT);
        deframer.space().copy_from_slice(&message(1, &[0; 4])[..16]);
        assert!(
            deframer
                .filled(16, descriptors(2), false)
                .unwrap()
                .is_none()
        );
        let first = deframer.filled(4, descriptors(1), false).unwrap().unwrap();
        assert_eq!(first.descriptors.len(), 3);
        assert!(!first.descriptors_lost);
        deframer.space().copy_from_slice(&message(2, &[]));
        let second = deframer.filled(16, Vec::new(), false).unwrap().unwrap();
        assert!(second.descriptors.is_empty());
    }

    #[test]
    fn descriptors_beyond_the_limit_are_dropped_and_that_is_told() {
        let mut deframer = Deframer::new(LIMIT);
        deframer.space().copy_from_slice(&message(1, &[]));
        let message = deframer
            .filled(16, descriptors(MAX_DESCRIPTORS + 1), false)
            .unwrap()
            .unwrap();
        assert_eq!(message.descriptors.len(), MAX_DESCRIPTORS);
        assert!(message.descriptors_lost);
    }

    #[test]
    fn the_end_inside_a_message_is_an_error() {
        let whole = message(1, &[0; 8]);
        for (cut, missing) in [(1, 15), (15, 1), (16, 8), (20, 4)] {
            let mut deframer = Deframer::new(LIMIT);
            feed(&mut deframer, &whole[..cut], &[100]).unwrap();
            assert_eq!(deframer.end(), Err(FramingError::CutShort(missing)));
        }
    }
}
