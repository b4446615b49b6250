//! From a packet to the message that it is, if it is one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::link_mode::LinkMode;
use crate::message::{LinkTiming, Message, PortId, Refusal, Status};
use crate::window::{BarBacking, BarWindow};
use crate::wire::{self, MAX_DATA, MAX_WINDOWS, backing, kind};

/// Why a packet is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Its kind is unknown.
    #[error("message of unknown kind {0}")]
    Kind(u32),
    /// It is too short or too long for its kind.
    #[error("message of kind {kind} with {length} bytes")]
    Length {
        /// Its kind.
        kind: u32,
        /// Its length.
        length: usize,
    },
    /// There are more or fewer descriptors than the windows of the message have memory.
    #[error("message of kind {kind} with {came} descriptors instead of {wanted}")]
    Descriptors {
        /// Its kind.
        kind: u32,
        /// How many it has.
        came: usize,
        /// How many should have.
        wanted: usize,
    },
    /// A field has a value that makes no sense.
    #[error("message with {field} {value:#x}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl Message {
    /// Reads a packet. Descriptors that are not part of the message are closed.
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, WireError> {
        let kind = first_word(bytes).get();
        if matches!(kind, kind::ANNOUNCE | kind::PEER) {
            return decode_windows(bytes, descriptors);
        }
        if kind == kind::LINK {
            return decode_link(bytes, descriptors);
        }
        expect_descriptors(kind, descriptors.len(), 0)?;
        match kind {
            kind::HELLO => decode_hello(bytes),
            kind::WELCOME => decode_welcome(bytes),
            kind::REFUSED => {
                let refused: &wire::Refused = exactly(bytes)?;
                let reason = refused.reason.get();
                let refusal =
                    Refusal::from_repr(reason).ok_or_else(|| value("reason", reason.into()))?;
                Ok(Self::Refused(refusal))
            }
            kind::ANNOUNCED => exactly(bytes).map(|number: &wire::Number| Self::Announced {
                sequence: number.number.get(),
            }),
            kind::ACK => exactly(bytes).map(|number: &wire::Number| Self::Ack {
                epoch: number.number.get(),
            }),
            kind::READ | kind::WRITE | kind::REPLY => decode_request(bytes),
            other => Err(WireError::Kind(other)),
        }
    }
}

fn decode_hello(bytes: &[u8]) -> Result<Message, WireError> {
    let hello: &wire::Hello = exactly(bytes)?;
    let end = hello.name.iter().rposition(|byte| *byte != 0);
    let name = hello
        .name
        .get(..end.map_or(0, |end| end + 1))
        .unwrap_or_default();
    let odd = name.iter().find(|byte| !matches!(byte, b' '..=b'~'));
    if let Some(byte) = odd.or(name.is_empty().then_some(&0)) {
        return Err(value("a name with the character", (*byte).into()));
    }
    Ok(Message::Hello {
        protocol: hello.protocol.get(),
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

fn decode_welcome(bytes: &[u8]) -> Result<Message, WireError> {
    let welcome: &wire::Welcome = exactly(bytes)?;
    let mode = welcome.mode.get();
    Ok(Message::Welcome {
        port: PortId(welcome.port.get()),
        mode: LinkMode::from_repr(mode).ok_or_else(|| value("link mode", mode.into()))?,
    })
}

fn decode_link(bytes: &[u8], mut descriptors: Vec<OwnedFd>) -> Result<Message, WireError> {
    let link: &wire::Link = exactly(bytes)?;
    expect_descriptors(kind::LINK, descriptors.len(), 1)?;
    let meter = descriptors.pop().ok_or(WireError::Descriptors {
        kind: kind::LINK,
        came: 0,
        wanted: 1,
    })?;
    Ok(Message::Link {
        peer: PortId(link.peer.get()),
        timing: LinkTiming {
            latency: link.latency.get(),
            bandwidth: link.bandwidth.get(),
            meter: Arc::new(meter),
        },
    })
}

fn decode_windows(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Message, WireError> {
    let (head, rest) = prefix::<wire::Windows>(bytes)?;
    let windows = <[wire::WireWindow]>::ref_from_bytes(rest)
        .ok()
        .filter(|windows| windows.len() <= MAX_WINDOWS)
        .ok_or_else(|| length_error(bytes, head.kind))?;
    let lent = windows.iter().filter(|w| w.backing.get() == backing::LENT);
    expect_descriptors(head.kind.get(), descriptors.len(), lent.count())?;
    let mut descriptors = descriptors.into_iter();
    let windows = windows
        .iter()
        .map(|window| decode_window(window, &mut descriptors))
        .collect::<Result<_, _>>()?;
    let number = head.number.get();
    Ok(match head.kind.get() {
        kind::ANNOUNCE => Message::Announce {
            sequence: number,
            windows,
        },
        _ => Message::Peer {
            epoch: number,
            peer: PortId(head.peer.get()),
            windows,
        },
    })
}

fn decode_window(
    window: &wire::WireWindow,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> Result<BarWindow, WireError> {
    let (address, size) = (window.address.get(), window.size.get());
    let fits = size
        .checked_sub(1)
        .and_then(|rest| address.checked_add(rest));
    if fits.is_none() {
        return Err(value("a window of the size", size));
    }
    let bar = u8::try_from(window.bar.get())
        .ok()
        .filter(|bar| usize::from(*bar) < MAX_WINDOWS)
        .ok_or_else(|| value("a window of BAR", window.bar.get().into()))?;
    let backing = match (window.backing.get(), window.offset.get()) {
        (backing::LENT, offset) => descriptors
            .next()
            .map(|descriptor| BarBacking::Lent(Arc::new(descriptor), offset)),
        (backing::BY_MESSAGE, _) => Some(BarBacking::ByMessage),
        (backing::GONE, _) => Some(BarBacking::Gone),
        _ => None,
    };
    Ok(BarWindow {
        bar,
        address,
        size,
        claim: window.claim.get(),
        backing: backing
            .ok_or_else(|| value("a window over memory of kind", window.backing.get().into()))?,
    })
}

fn decode_request(bytes: &[u8]) -> Result<Message, WireError> {
    let (request, data) = prefix::<wire::Request>(bytes)?;
    let (peer, tag) = (PortId(request.peer.get()), request.tag.get());
    let (address, length) = (request.address.get(), request.length.get());
    let status = request.status.get();
    let one_to_most = |length: usize| (1..=MAX_DATA).contains(&length);
    let asked = usize::try_from(length).unwrap_or(usize::MAX);
    match request.kind.get() {
        kind::READ if !one_to_most(asked) => Err(value("a read of the length", length.into())),
        kind::READ if data.is_empty() => Ok(Message::Read {
            peer,
            tag,
            address,
            length,
        }),
        kind::WRITE if one_to_most(data.len()) => Ok(Message::Write {
            peer,
            tag,
            address,
            data: data.to_vec(),
        }),
        kind::REPLY if data.len() <= MAX_DATA => Ok(Message::Reply {
            peer,
            tag,
            status: Status::from_repr(status).ok_or_else(|| value("status", status.into()))?,
            data: data.to_vec(),
        }),
        _ => Err(length_error(bytes, request.kind)),
    }
}

fn exactly<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Result<&T, WireError> {
    match prefix(bytes)? {
        (value, []) => Ok(value),
        _ => Err(length_error(bytes, first_word(bytes))),
    }
}

fn prefix<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), WireError> {
    T::ref_from_prefix(bytes).map_err(|_| length_error(bytes, first_word(bytes)))
}

fn first_word(bytes: &[u8]) -> U32 {
    U32::read_from_prefix(bytes).map_or(U32::new(0), |(word, _)| word)
}

fn length_error(bytes: &[u8], kind: U32) -> WireError {
    WireError::Length {
        kind: kind.get(),
        length: bytes.len(),
    }
}

fn expect_descriptors(kind: u32, came: usize, wanted: usize) -> Result<(), WireError> {
    if came == wanted {
        return Ok(());
    }
    Err(WireError::Descriptors { kind, came, wanted })
}

fn value(field: &'static str, value: u64) -> WireError {
    WireError::Value { field, value }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn window(bar: u8, backing: BarBacking) -> BarWindow {
        BarWindow {
            bar,
            address: 0x38_0000_0000,
            size: 0x20_0000,
            claim: 7,
            backing,
        }
    }

    fn messages() -> Vec<Message> {
        let (peer, tag, address) = (PortId(3), 1 << 40, u64::MAX);
        let windows = vec![
            window(0, BarBacking::ByMessage),
            window(2, BarBacking::Lent(Arc::new(descriptor()), 4096)),
            window(4, BarBacking::Gone),
        ];
        let data = vec![1, 2, 3];
        let status = Status::TimedOut;
        vec![
            Message::Hello {
                protocol: 1,
                name: "disk0".to_owned(),
            },
            Message::Welcome {
                port: peer,
                mode: LinkMode::Drop,
            },
            Message::Refused(Refusal::Full),
            Message::Announce {
                sequence: 9,
                windows: windows.clone(),
            },
            Message::Announced { sequence: 9 },
            Message::Link {
                peer,
                timing: LinkTiming {
                    latency: 2000,
                    bandwidth: 1 << 32,
                    meter: Arc::new(descriptor()),
                },
            },
            Message::Peer {
                epoch: 5,
                peer,
                windows,
            },
            Message::Ack { epoch: 5 },
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
                status,
                data,
            },
        ]
    }

    /// The packet as it arrives: with descriptors of its own.
    fn received(message: &Message) -> (Vec<u8>, Vec<OwnedFd>) {
        let packet = message.encode();
        let descriptors = packet.descriptors.iter().map(|fd| fd.try_clone().unwrap());
        (packet.bytes, descriptors.collect())
    }

    /// A message as text, without the numbers of its descriptors.
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
            let has_data = matches!(message, Message::Write { .. } | Message::Reply { .. });
            descriptors.push(descriptor());
            let error = Message::decode(&bytes, descriptors).unwrap_err();
            assert!(matches!(error, WireError::Descriptors { .. }), "{error}");
            bytes.push(0);
            let longer = Message::decode(&bytes, received(&message).1);
            assert_eq!(longer.is_ok(), has_data, "{message:?}");
            bytes.truncate(bytes.len() - 2);
            let shorter = Message::decode(&bytes, received(&message).1);
            assert_eq!(shorter.is_ok(), has_data, "{message:?}");
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let announce = |window| Message::Announce {
            sequence: 1,
            windows: vec![window],
        };
        let odd = [
            announce(BarWindow {
                size: 0,
                ..window(0, BarBacking::ByMessage)
            }),
            announce(BarWindow {
                address: u64::MAX,
                size: 2,
                ..window(0, BarBacking::ByMessage)
            }),
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
                address: 0,
                length: 0,
            },
            Message::Read {
                peer: PortId(0),
                tag: 0,
                address: 0,
                length: u32::MAX,
            },
            Message::Write {
                peer: PortId(0),
                tag: 0,
                address: 0,
                data: Vec::new(),
            },
            Message::Write {
                peer: PortId(0),
                tag: 0,
                address: 0,
                data: vec![0; MAX_DATA + 1],
            },
            Message::Announce {
                sequence: 1,
                windows: vec![window(0, BarBacking::ByMessage); 7],
            },
        ];
        for message in odd {
            let (bytes, descriptors) = received(&message);
            assert!(Message::decode(&bytes, descriptors).is_err(), "{message:?}");
        }
    }

    #[test]
    fn the_end_of_the_address_space_can_be_a_window() {
        let last = BarWindow {
            address: u64::MAX,
            size: 1,
            ..window(0, BarBacking::ByMessage)
        };
        let (bytes, _) = received(&Message::Announce {
            sequence: 1,
            windows: vec![last],
        });
        assert!(Message::decode(&bytes, Vec::new()).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0u32..13, rest in prop::collection::vec(any::<u8>(), 0..300), descriptors in 0usize..3) {
            let bytes = [&kind.to_le_bytes(), rest.as_slice()].concat();
            let descriptors = (0..descriptors).map(|_| descriptor()).collect();
            if let Ok(message) = Message::decode(&bytes, descriptors) {
                let (again, descriptors) = received(&message);
                prop_assert_eq!(text(&Message::decode(&again, descriptors).unwrap()), text(&message));
            }
        }
    }
}
