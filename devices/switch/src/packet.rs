//! A message on the wire: its bytes in postcard's format, and its descriptors.

use std::os::fd::OwnedFd;

use peerbar_host::socket_file::packets::contents::{self, ContentsError};
use peerbar_host::socket_file::packets::{self, Packet};
use thiserror::Error;

use crate::limits::{MAX_DATA, MAX_NAME, MAX_PACKET, MAX_WINDOWS};
use crate::message::Message;
use crate::window::{BarBacking, BarWindow, Descriptor};

/// The reason why a packet is not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Its bytes are not a message.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// There are more or fewer descriptors than the message has memory.
    #[error("message with {came} descriptors instead of {wanted}")]
    Descriptors {
        /// Number of its descriptors.
        came: usize,
        /// Number of descriptors that the message needs.
        wanted: usize,
    },
}

impl Message {
    /// Returns the message as a packet.
    pub fn encode(&self) -> Packet {
        let descriptors = self.descriptors().into_iter();
        Packet {
            bytes: contents::encode(self),
            descriptors: descriptors.filter_map(Descriptor::get).cloned().collect(),
        }
    }

    /// Reads a packet. Descriptors that are not part of the message are closed.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, WireError> {
        let message = contents::decode(bytes, Self::wrong_field)?;
        let fields = message.descriptors();
        let (came, wanted) = (descriptors.len(), fields.len());
        if came != wanted {
            return Err(WireError::Descriptors { came, wanted });
        }
        for (field, descriptor) in fields.into_iter().zip(descriptors) {
            field.set(descriptor);
        }
        Ok(message)
    }

    /// Returns the descriptors that are part of the message, in order.
    fn descriptors(&self) -> Vec<&Descriptor> {
        match self {
            Self::Welcome { changes, .. } => vec![changes],
            Self::Link { timing, .. } => vec![&timing.meter],
            Self::Announce {
                windows, leases, ..
            }
            | Self::Peer {
                windows, leases, ..
            } => {
                let lent = windows.iter().filter_map(|window| match &window.backing {
                    BarBacking::Lent(descriptor, ..) => Some(descriptor),
                    BarBacking::ByMessage | BarBacking::Gone => None,
                });
                let mut all: Vec<&Descriptor> = lent.collect();
                if !all.is_empty() {
                    all.push(leases);
                }
                all
            }
            _ => Vec::new(),
        }
    }

    /// Returns the name of a field with a value that no endpoint or switch would send.
    fn wrong_field(&self) -> Option<&'static str> {
        let makes_sense = |window: &BarWindow| usize::from(window.bar) < MAX_WINDOWS;
        let (right, field) = match self {
            Self::Hello { name, .. } => (is_name(name), "a name"),
            Self::Announce { windows, .. } | Self::Peer { windows, .. } => (
                windows.len() <= MAX_WINDOWS && windows.iter().all(makes_sense),
                "a window",
            ),
            Self::Read { length, .. } => {
                let length = usize::try_from(*length);
                (
                    length.is_ok_and(|length| (1..=MAX_DATA).contains(&length)),
                    "a length",
                )
            }
            Self::Write { data, .. } => ((1..=MAX_DATA).contains(&data.len()), "a length"),
            Self::Reply {
                outcome: Ok(data), ..
            } => (data.len() <= MAX_DATA, "a length"),
            _ => (true, ""),
        };
        (!right).then_some(field)
    }
}

impl packets::Message for Message {
    type Error = WireError;
    const LONGEST: usize = MAX_PACKET;

    fn from_packet(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, WireError> {
        Self::decode(bytes, descriptors)
    }
}

/// Returns `true` if an endpoint may have this name: 1 to 32 printable ASCII characters.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use peerbar_pci::{BusAddress, Range};
    use proptest::prelude::*;
    use serde_bytes::ByteBuf;

    use super::*;
    use crate::link_mode::LinkMode;
    use crate::message::{LinkTiming, PortId, Refusal, RequestError};

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn window(bar: u8, backing: BarBacking) -> BarWindow {
        BarWindow {
            bar,
            range: Range::new(BusAddress(0x38_0000_0000), 0x20_0000).unwrap(),
            claim: 7,
            backing,
        }
    }

    fn messages() -> Vec<Message> {
        let (peer, tag, address) = (PortId(3), 1 << 40, BusAddress(u64::MAX));
        let windows = vec![
            window(0, BarBacking::ByMessage),
            window(2, BarBacking::Lent(Descriptor::new(descriptor()), 4096, 5)),
            window(4, BarBacking::Gone),
        ];
        let data = ByteBuf::from([1, 2, 3]);
        vec![
            Message::Hello {
                protocol: 1,
                name: "disk0".to_owned(),
            },
            Message::Welcome {
                port: peer,
                mode: LinkMode::Drop,
                changes: Descriptor::new(descriptor()),
            },
            Message::Refused(Refusal::Full),
            Message::Announce {
                sequence: 9,
                windows: windows.clone(),
                leases: Descriptor::new(descriptor()),
            },
            Message::Announced { sequence: 9 },
            Message::Link {
                peer,
                timing: LinkTiming {
                    latency: 2000,
                    bandwidth: 1 << 32,
                    meter: Descriptor::new(descriptor()),
                },
            },
            Message::Peer {
                ticket: 5,
                peer,
                windows,
                leases: Descriptor::new(descriptor()),
                known: 1 << 40,
            },
            Message::Known { count: u64::MAX },
            Message::Ack { ticket: 5 },
            Message::Read {
                peer,
                tag,
                address,
                length: 8,
            },
            Message::Write {
                peer,
                tag,
                address,
                data: data.clone(),
            },
            Message::Reply {
                peer,
                tag,
                outcome: Ok(data),
            },
            Message::Reply {
                peer,
                tag,
                outcome: Err(RequestError::TimedOut),
            },
            Message::Mark,
        ]
    }

    /// Returns the packet as it arrives, with its own copies of the descriptors.
    fn received(message: &Message) -> (Vec<u8>, Vec<OwnedFd>) {
        let packet = message.encode();
        let descriptors = packet.descriptors.iter().map(|fd| fd.try_clone().unwrap());
        (packet.bytes, descriptors.collect())
    }

    /// Returns a message as text, without the numbers of its descriptors.
    fn text(message: &Message) -> String {
        let text = format!("{message:?}");
        text.split("fd: ")
            .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()))
            .collect()
    }

    #[test]
    fn each_message_arrives_as_it_was_sent() {
        for message in messages() {
            let (bytes, descriptors) = received(&message);
            let arrived = Message::decode(&bytes, descriptors).unwrap();
            assert_eq!(text(&arrived), text(&message));
        }
    }

    #[test]
    fn wrong_length_or_stray_descriptor_is_refused() {
        for message in messages() {
            let (mut bytes, mut descriptors) = received(&message);
            descriptors.push(descriptor());
            let error = Message::decode(&bytes, descriptors).unwrap_err();
            assert!(matches!(error, WireError::Descriptors { .. }), "{error}");
            bytes.push(0);
            let longer = Message::decode(&bytes, received(&message).1);
            assert_eq!(
                longer.unwrap_err(),
                WireError::Contents(ContentsError::Longer(1))
            );
            bytes.truncate(bytes.len() - 2);
            let shorter = Message::decode(&bytes, received(&message).1);
            assert!(
                matches!(shorter, Err(WireError::Contents(ContentsError::Format(_)))),
                "{message:?}"
            );
        }
    }

    #[test]
    fn largest_messages_fit_a_packet() {
        let (peer, tag, address) = (PortId(u32::MAX), u64::MAX, BusAddress(u64::MAX));
        let data = ByteBuf::from(vec![0; MAX_DATA]);
        let last = BarWindow {
            range: Range::new(address, 1).unwrap(),
            claim: u64::MAX,
            ..window(
                5,
                BarBacking::Lent(Descriptor::new(descriptor()), u64::MAX, u32::MAX),
            )
        };
        let largest = [
            Message::Peer {
                ticket: u64::MAX,
                peer,
                windows: vec![last; MAX_WINDOWS],
                leases: Descriptor::new(descriptor()),
                known: u64::MAX,
            },
            Message::Write {
                peer,
                tag,
                address,
                data,
            },
        ];
        for message in largest {
            let (bytes, descriptors) = received(&message);
            assert!(bytes.len() <= MAX_PACKET, "{}", bytes.len());
            Message::decode(&bytes, descriptors).unwrap();
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let announce = |window| Message::Announce {
            sequence: 1,
            windows: vec![window],
            leases: Descriptor::default(),
        };
        let odd = [
            announce(window(6, BarBacking::ByMessage)),
            Message::Hello {
                protocol: 1,
                name: String::new(),
            },
            Message::Hello {
                protocol: 1,
                name: "a\tdisk".to_owned(),
            },
            Message::Read {
                peer: PortId(0),
                tag: 0,
                address: BusAddress(0),
                length: 0,
            },
            Message::Read {
                peer: PortId(0),
                tag: 0,
                address: BusAddress(0),
                length: u32::MAX,
            },
            Message::Write {
                peer: PortId(0),
                tag: 0,
                address: BusAddress(0),
                data: ByteBuf::new(),
            },
            Message::Write {
                peer: PortId(0),
                tag: 0,
                address: BusAddress(0),
                data: ByteBuf::from(vec![0; MAX_DATA + 1]),
            },
            Message::Announce {
                sequence: 1,
                windows: vec![window(0, BarBacking::ByMessage); 7],
                leases: Descriptor::default(),
            },
        ];
        for message in odd {
            let (bytes, descriptors) = received(&message);
            assert!(Message::decode(&bytes, descriptors).is_err(), "{message:?}");
        }
    }

    #[test]
    fn window_that_is_empty_or_wraps_around_is_refused() {
        // The fields of an Announce, which is variant 4, with one window.
        let announce = |address: u64, size: u64| {
            let window = (0_u8, address, size, 7_u64, BarBacking::ByMessage);
            let bytes = contents::encode(&(4_u8, 1_u64, [window].as_slice()));
            Message::decode(&bytes, Vec::new())
        };
        assert!(announce(0x1000, 0x1000).is_ok());
        assert!(announce(0x1000, 0).is_err());
        assert!(announce(u64::MAX, 2).is_err());
    }

    #[test]
    fn the_end_of_the_address_space_can_be_a_window() {
        let last = BarWindow {
            range: Range::new(BusAddress(u64::MAX), 1).unwrap(),
            ..window(0, BarBacking::ByMessage)
        };
        let (bytes, _) = received(&Message::Announce {
            sequence: 1,
            windows: vec![last],
            leases: Descriptor::default(),
        });
        assert!(Message::decode(&bytes, Vec::new()).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0u8..14, rest in prop::collection::vec(any::<u8>(), 0..300), descriptors in 0usize..3) {
            let bytes = [&[kind], rest.as_slice()].concat();
            let descriptors = (0..descriptors).map(|_| descriptor()).collect();
            if let Ok(message) = Message::decode(&bytes, descriptors) {
                let (again, descriptors) = received(&message);
                prop_assert_eq!(text(&Message::decode(&again, descriptors).unwrap()), text(&message));
            }
        }
    }
}
