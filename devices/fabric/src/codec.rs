//! A message on the wire: its bytes in postcard's format, and its descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use peerbar_host::socket_file::packets::contents::{self, ContentsError};
use peerbar_host::socket_file::packets::{self, Packet};
use thiserror::Error;

use crate::limits::{MAX_DESCRIPTORS, MAX_NAME, MAX_PACKET};
use crate::message::{Body, Incarnation, Message};

/// The reason why a packet is not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Its bytes are not a message.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// There are more descriptors than the message may have.
    #[error("message with {came} descriptors instead of at most {most}")]
    Descriptors {
        /// Number of its descriptors.
        came: usize,
        /// Number of descriptors that it may have.
        most: usize,
    },
    /// A direct connection has no socket.
    #[error("direct connection without its socket")]
    NoSocket,
}

impl Message {
    /// Returns the message as a packet.
    pub fn encode(&self) -> Packet {
        let descriptors = match self {
            Self::Packet {
                body: Body::Request { descriptors, .. },
                ..
            } => descriptors.clone(),
            Self::Direct { socket, .. } => socket.iter().cloned().collect(),
            _ => Vec::new(),
        };
        Packet {
            bytes: contents::encode(self),
            descriptors,
        }
    }

    /// Reads a packet. Descriptors that are not part of the message are closed.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8], came: Vec<OwnedFd>) -> Result<Self, WireError> {
        let mut message = contents::decode(bytes, Self::wrong_field)?;
        message.take_descriptors(came)?;
        Ok(message)
    }

    /// Takes the descriptors that came with the message.
    fn take_descriptors(&mut self, came: Vec<OwnedFd>) -> Result<(), WireError> {
        let most = match self {
            Self::Packet {
                body: Body::Request { .. },
                ..
            } => MAX_DESCRIPTORS,
            Self::Direct { .. } if came.is_empty() => return Err(WireError::NoSocket),
            Self::Direct { .. } => 1,
            _ => 0,
        };
        if came.len() > most {
            let came = came.len();
            return Err(WireError::Descriptors { came, most });
        }
        let mut came = came.into_iter().map(Arc::new);
        match self {
            Self::Packet {
                body: Body::Request { descriptors, .. },
                ..
            } => descriptors.extend(came),
            Self::Direct { socket, .. } => *socket = came.next(),
            _ => {}
        }
        Ok(())
    }

    /// Returns the name of a field with a value that no adapter or fabric would send.
    fn wrong_field(&self) -> Option<&'static str> {
        match self {
            Self::Hello { name, .. } if !is_name(name) => Some("a name"),
            Self::Packet {
                incarnation: Incarnation::NONE,
                body,
                ..
            } if !matches!(body, Body::Datagram { .. }) => Some("an incarnation"),
            Self::Packet { body, .. } => body.wrong_field(),
            _ => None,
        }
    }
}

impl packets::Message for Message {
    type Error = WireError;
    const LONGEST: usize = MAX_PACKET;

    fn from_packet(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, WireError> {
        Self::decode(bytes, descriptors)
    }
}

/// Returns `true` if an adapter may have this name. No valid character has a meaning in a rule.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;
    use serde_bytes::ByteBuf;

    use super::*;
    use crate::gid::Gid;
    use crate::limits::MAX_DATA;
    use crate::message::Refusal;

    const GID: Gid = Gid([0xff; 16]);

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn packet(body: Body) -> Message {
        Message::Packet {
            peer: GID,
            incarnation: Incarnation(u64::MAX),
            body,
        }
    }

    fn request(data: Vec<u8>, descriptors: usize) -> Message {
        packet(Body::Request {
            tag: u64::MAX,
            oldest: u64::MAX,
            data: ByteBuf::from(data),
            descriptors: (0..descriptors).map(|_| Arc::new(descriptor())).collect(),
        })
    }

    fn messages() -> Vec<Message> {
        let data = || ByteBuf::from([1, 2, 3]);
        vec![
            Message::Hello {
                protocol: 1,
                name: "nic0".to_owned(),
                gid: GID,
            },
            Message::Welcome {
                incarnation: Incarnation(7),
            },
            Message::Refused(Refusal::Taken),
            Message::Resolve { gid: GID },
            Message::Peer {
                gid: GID,
                incarnation: Incarnation::NONE,
                takes_descriptors: true,
            },
            packet(Body::Datagram { data: data() }),
            request(vec![4], 0),
            request(Vec::new(), MAX_DESCRIPTORS),
            packet(Body::Working { tag: 5 }),
            packet(Body::Response {
                tag: 5,
                data: Some(data()),
            }),
            packet(Body::Response { tag: 5, data: None }),
            packet(Body::Settled { oldest: 6 }),
            Message::Connect { gid: GID },
            Message::Direct {
                gid: GID,
                incarnation: Incarnation(8),
                socket: Some(Arc::new(descriptor())),
            },
        ]
    }

    /// Returns the packet as it arrives, with its own copies of the descriptors.
    fn received(message: &Message) -> (Vec<u8>, Vec<OwnedFd>) {
        let packet = message.encode();
        let descriptors = packet.descriptors.iter().map(|fd| fd.try_clone().unwrap());
        (packet.bytes, descriptors.collect())
    }

    #[test]
    fn each_message_arrives_as_it_was_sent() {
        for message in messages() {
            let (bytes, descriptors) = received(&message);
            let arrived = Message::decode(&bytes, descriptors).unwrap().encode();
            assert_eq!(arrived.bytes, bytes);
            let sent = message.encode().descriptors.len();
            assert_eq!(arrived.descriptors.len(), sent, "{message:?}");
        }
    }

    #[test]
    fn wrong_length_or_stray_descriptor_is_refused() {
        for message in messages() {
            let (mut bytes, _) = received(&message);
            let three = (0..=MAX_DESCRIPTORS).map(|_| descriptor()).collect();
            let error = Message::decode(&bytes, three).unwrap_err();
            assert!(matches!(error, WireError::Descriptors { .. }), "{error}");
            bytes.push(0);
            let longer = Message::decode(&bytes, Vec::new());
            assert_eq!(
                longer.unwrap_err(),
                WireError::Contents(ContentsError::Longer(1))
            );
            bytes.truncate(bytes.len() - 2);
            let shorter = Message::decode(&bytes, Vec::new());
            assert!(
                matches!(shorter, Err(WireError::Contents(ContentsError::Format(_)))),
                "{message:?}"
            );
        }
        let settled = packet(Body::Settled { oldest: 1 }).encode().bytes;
        assert!(Message::decode(&settled, vec![descriptor()]).is_err());
    }

    #[test]
    fn longest_request_fits_a_packet() {
        let (bytes, descriptors) = received(&request(vec![0; MAX_DATA], MAX_DESCRIPTORS));
        assert!(bytes.len() <= MAX_PACKET, "{}", bytes.len());
        Message::decode(&bytes, descriptors).unwrap();
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let long = || ByteBuf::from(vec![0; MAX_DATA + 1]);
        let hello = |name: &str| Message::Hello {
            protocol: 1,
            name: name.to_owned(),
            gid: GID,
        };
        let wrong = [
            packet(Body::Datagram { data: long() }),
            packet(Body::Response {
                tag: 0,
                data: Some(long()),
            }),
            request(vec![0; MAX_DATA + 1], 0),
            packet(Body::Request {
                tag: 1,
                oldest: 2,
                data: ByteBuf::new(),
                descriptors: Vec::new(),
            }),
            Message::Packet {
                peer: GID,
                incarnation: Incarnation::NONE,
                body: Body::Working { tag: 0 },
            },
            hello(""),
            hello("a b"),
            hello("a->b"),
            hello("*"),
            hello(&"x".repeat(MAX_NAME + 1)),
        ];
        for message in wrong {
            let error = Message::decode(&message.encode().bytes, Vec::new()).unwrap_err();
            assert!(
                matches!(error, WireError::Contents(ContentsError::Value(_))),
                "{message:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::decode(&bytes, Vec::new()) {
                let again = message.encode().bytes;
                let twice = Message::decode(&again, Vec::new()).unwrap();
                prop_assert_eq!(twice.encode().bytes, again);
            }
        }
    }
}
