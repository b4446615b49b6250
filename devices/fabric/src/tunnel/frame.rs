//! What two fabrics say to each other.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::codec::is_name;
use crate::gid::Gid;
use crate::limits::MAX_PACKET;
use crate::message::{AdapterId, Body, Incarnation};

/// The longest frame in bytes: a packet with one more GID and incarnation.
pub(super) const MAX_FRAME: usize = MAX_PACKET + 32;

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameError {
    /// They are of no form.
    #[error("no frame: {0}")]
    Format(#[from] postcard::Error),
    /// Bytes follow.
    #[error("frame with {0} bytes behind it")]
    Longer(usize),
    /// A field has a value that makes no sense.
    #[error("frame with {0} that makes no sense")]
    Value(&'static str),
    /// It is a packet where a notice belongs.
    #[error("a packet in place of a notice")]
    Kind,
}

/// What one fabric sends another, in postcard's format.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// An adapter has attached to the sender.
    Present {
        /// Its name there.
        name: String,
        /// Its address.
        gid: Gid,
        /// As the sender knows it.
        incarnation: Incarnation,
    },
    /// It has left.
    Absent {
        /// Its address.
        gid: Gid,
    },
    /// A packet of an adapter of the sender's for one of the receiver's.
    Packet {
        /// The source, as the sender knows it.
        from: AdapterId,
        /// The destination, as the receiver knows it.
        to: AdapterId,
        /// What they say to each other.
        body: Body,
    },
}

impl Frame {
    /// Whether it belongs to the ordered stream.
    pub(crate) fn is_notice(&self) -> bool {
        !matches!(self, Self::Packet { .. })
    }

    /// Its form on the wire.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Nothing in a frame is refused by the format.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads a frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let (frame, rest): (Self, _) = postcard::take_from_bytes(bytes)?;
        if !rest.is_empty() {
            return Err(FrameError::Longer(rest.len()));
        }
        let wrong = match &frame {
            Self::Present { name, .. } if !is_name(name) => Some("a name"),
            Self::Present {
                incarnation: Incarnation::NONE,
                ..
            } => Some("an incarnation"),
            Self::Packet { from, to, .. }
                if [from.incarnation, to.incarnation].contains(&Incarnation::NONE) =>
            {
                Some("an incarnation")
            }
            Self::Packet { body, .. } => body.wrong_field(),
            _ => None,
        };
        wrong.map_or(Ok(frame), |field| Err(FrameError::Value(field)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_bytes::ByteBuf;

    use super::*;
    use crate::limits::MAX_DATA;

    const GID: Gid = Gid([0xff; 16]);
    const LAST: Incarnation = Incarnation(u64::MAX);

    fn packet(from: Incarnation, to: Incarnation, bytes: usize) -> Frame {
        let id = |incarnation| AdapterId {
            gid: GID,
            incarnation,
        };
        Frame::Packet {
            from: id(from),
            to: id(to),
            body: Body::Request {
                tag: u64::MAX,
                oldest: u64::MAX,
                data: ByteBuf::from(vec![0; bytes]),
                descriptors: Vec::new(),
            },
        }
    }

    fn present(name: &str, incarnation: Incarnation) -> Frame {
        Frame::Present {
            name: name.to_owned(),
            gid: GID,
            incarnation,
        }
    }

    #[test]
    fn longest_frames_fit_and_arrive_as_they_were_sent() {
        let longest = packet(LAST, LAST, MAX_DATA);
        assert!(longest.encode().len() <= MAX_FRAME);
        let longest_name = present(&"x".repeat(32), LAST);
        assert!(longest_name.encode().len() <= usize::from(u16::MAX));
        for frame in [longest, longest_name, Frame::Absent { gid: GID }] {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes).unwrap().encode(), bytes);
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let wrong = [
            packet(Incarnation::NONE, LAST, 0),
            packet(LAST, Incarnation::NONE, 0),
            packet(LAST, LAST, MAX_DATA + 1),
            present("a b", LAST),
            present("a", Incarnation::NONE),
        ];
        for frame in wrong {
            let error = Frame::decode(&frame.encode()).unwrap_err();
            assert!(matches!(error, FrameError::Value(_)), "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = Frame::decode(&bytes) {
                let again = frame.encode();
                prop_assert_eq!(Frame::decode(&again).unwrap().encode(), again);
            }
        }
    }
}
