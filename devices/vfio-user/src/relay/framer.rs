//! The places in a stream at which messages begin and end. Independent of the socket.

use zerocopy::FromBytes;

use crate::wire::{HEADER_SIZE, Header};

/// Cuts a stream into messages, and keeps only the header and the start of the payload of the one
/// that is being received. It accepts any bytes.
#[derive(Debug)]
pub(super) struct Framer {
    /// The limit of `payload` in bytes.
    most: usize,
    /// The bytes of the header that were received.
    header: Vec<u8>,
    part: Part,
    payload: Vec<u8>,
}

/// The part of a message that is being received.
#[derive(Clone, Copy, Debug)]
enum Part {
    Header,
    /// A payload with its length, and the number of its bytes still to come.
    Payload(Header, usize, usize),
    /// The stream is not a sequence of messages.
    Unframed,
}

/// The effect of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A part of a message was received, or bytes that belong to none.
    Part,
    /// A message is complete. [`Framer::message`] returns it until the next bytes are received.
    Message,
    /// A header announces this size, which is less than its own. No message follows.
    Unframed(u32),
}

impl Framer {
    /// Makes a framer for a new stream. It keeps the first `most` bytes of a payload.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            header: Vec::with_capacity(HEADER_SIZE),
            part: Part::Header,
            payload: Vec::new(),
        }
    }

    /// Returns the number of bytes up to the end of the part that is being received, at least 1.
    pub(super) fn wanted(&self) -> usize {
        match self.part {
            Part::Header => HEADER_SIZE.saturating_sub(self.header.len()),
            Part::Payload(_, _, left) if left > 0 => left,
            Part::Payload(..) => HEADER_SIZE,
            Part::Unframed => usize::MAX,
        }
    }

    /// Takes received bytes, at most [`Framer::wanted`].
    pub(super) fn take(&mut self, bytes: &[u8]) -> Step {
        if let Part::Payload(_, _, 0) = self.part {
            self.begin();
        }
        match &mut self.part {
            Part::Unframed => Step::Part,
            Part::Header => {
                self.header.extend_from_slice(bytes);
                self.header_step()
            }
            Part::Payload(_, _, left) => {
                *left = left.saturating_sub(bytes.len());
                let step = if *left == 0 {
                    Step::Message
                } else {
                    Step::Part
                };
                let free = self.most.saturating_sub(self.payload.len());
                let kept = bytes.get(..free).unwrap_or(bytes);
                self.payload.extend_from_slice(kept);
                step
            }
        }
    }

    fn begin(&mut self) {
        self.header.clear();
        self.payload.clear();
        self.part = Part::Header;
    }

    fn header_step(&mut self) -> Step {
        let Ok((header, _)) = Header::read_from_prefix(&self.header) else {
            return Step::Part;
        };
        let size = header.size.get();
        let length = usize::try_from(size)
            .ok()
            .and_then(|size| size.checked_sub(HEADER_SIZE));
        let Some(length) = length else {
            self.part = Part::Unframed;
            return Step::Unframed(size);
        };
        self.part = Part::Payload(header, length, length);
        match length {
            0 => Step::Message,
            _ => Step::Part,
        }
    }

    /// Returns the message that is complete: its header, the start of its payload, and the length
    /// of its payload.
    pub(super) fn message(&self) -> Option<(Header, &[u8], usize)> {
        match self.part {
            Part::Payload(header, length, 0) => Some((header, &self.payload, length)),
            _ => None,
        }
    }

    /// Returns the header of the message whose payload was received last, complete or not.
    pub(super) fn begun(&self) -> Option<Header> {
        match self.part {
            Part::Payload(header, ..) => Some(header),
            Part::Header | Part::Unframed => None,
        }
    }

    /// Returns the number of missing bytes of a header or payload that has begun.
    pub(super) fn missing(&self) -> usize {
        match self.part {
            Part::Header if self.header.is_empty() => 0,
            Part::Header => self.wanted(),
            Part::Payload(_, _, left) => left,
            Part::Unframed => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_message::message;

    const MOST: usize = 100;

    /// The id, the kept bytes and the length of a message.
    type Taken = (u16, Vec<u8>, usize);

    /// Feeds `bytes` in parts of at most the sizes in `cuts`. Returns the messages, the size in an
    /// impossible header, and the number of missing bytes.
    fn feed(bytes: &[u8], cuts: &[usize]) -> (Vec<Taken>, Option<u32>, usize) {
        let mut framer = Framer::new(MOST);
        let (mut messages, mut unframed) = (Vec::new(), None);
        let mut rest = bytes;
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            assert!(framer.wanted() > 0);
            let count = framer.wanted().min(*cut).min(rest.len());
            let (some, left) = rest.split_at(count);
            rest = left;
            match framer.take(some) {
                Step::Part => {}
                Step::Unframed(size) => unframed = Some(size),
                Step::Message => {
                    let (header, payload, length) = framer.message().unwrap();
                    messages.push((header.id.get(), payload.to_vec(), length));
                }
            }
        }
        (messages, unframed, framer.missing())
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_messages(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2 * MOST), 1..8),
            cuts in prop::collection::vec(1_usize..300, 1..20),
        ) {
            let stream: Vec<u8> = (0..)
                .zip(&payloads)
                .flat_map(|(id, payload)| message(id, 0, payload))
                .collect();
            let (messages, unframed, missing) = feed(&stream, &cuts);
            let expected: Vec<_> = (0..)
                .zip(payloads)
                .map(|(id, payload)| (id, payload[..payload.len().min(MOST)].to_vec(), payload.len()))
                .collect();
            prop_assert_eq!((messages, unframed, missing), (expected, None, 0));
        }

        #[test]
        fn arbitrary_bytes_give_messages_or_an_unframed_rest(
            bytes in prop::collection::vec(any::<u8>(), 0..2048),
            cuts in prop::collection::vec(1_usize..200, 1..20),
        ) {
            let (messages, unframed, _) = feed(&bytes, &cuts);
            prop_assert!(messages.len() <= bytes.len() / HEADER_SIZE);
            prop_assert!(unframed.is_none_or(|size| size < 16));
        }
    }

    #[test]
    fn end_inside_a_message_misses_the_rest_of_its_part() {
        let whole = message(1, 0, &[0; 8]);
        for (cut, missing) in [(0, 0), (1, 15), (15, 1), (16, 8), (20, 4), (24, 0)] {
            assert_eq!(feed(&whole[..cut], &[100]).2, missing, "{cut}");
        }
    }

    #[test]
    fn huge_payload_keeps_its_start_only() {
        let mut header = message(7, 0, &[]);
        header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut framer = Framer::new(MOST);
        assert_eq!(framer.take(&header), Step::Part);
        let chunk = vec![1; 1 << 20];
        loop {
            let count = framer.wanted().min(chunk.len());
            if framer.take(&chunk[..count]) == Step::Message {
                break;
            }
        }
        let (_, payload, length) = framer.message().unwrap();
        assert_eq!((payload.len(), length), (MOST, u32::MAX as usize - 16));
    }
}
