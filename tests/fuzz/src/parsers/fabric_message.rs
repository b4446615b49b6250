//! A packet between an adapter and its fabric. An accepted message is encoded as one that is
//! accepted, with as many descriptors. A message that may have descriptors takes as many as it may,
//! and never more.

use peerbar_fabric::{MAX_DESCRIPTORS, Message, WireError};

use crate::descriptors::descriptors;

/// Reads `data`, with as many descriptors as it takes.
pub fn run(data: &[u8]) {
    let (least, plain) = match Message::decode(data, Vec::new()) {
        Ok(plain) => (0, plain),
        Err(WireError::NoSocket) => {
            let plain = Message::decode(data, descriptors(1));
            (1, plain.expect("a message with one descriptor"))
        }
        Err(_) => return,
    };
    assert_eq!(plain.encode().descriptors.len(), least);
    let too_many = Message::decode(data, descriptors(MAX_DESCRIPTORS + 1));
    assert!(matches!(too_many, Err(WireError::Descriptors { .. })));
    let message = Message::decode(data, descriptors(MAX_DESCRIPTORS)).unwrap_or(plain);
    let packet = message.encode();
    let came = descriptors(packet.descriptors.len());
    let again = Message::decode(&packet.bytes, came)
        .expect("a message")
        .encode();
    assert_eq!(again.bytes, packet.bytes);
    assert_eq!(again.descriptors.len(), packet.descriptors.len());
}

#[cfg(test)]
mod tests {
    use peerbar_fabric::{Body, Gid, Incarnation, PROTOCOL};

    use super::*;
    use crate::seed::Seed;

    #[test]
    fn seeds_are_messages_of_each_kind() {
        let gid = Gid([0xfe; 16]);
        let packet = |body| Message::Packet {
            peer: gid,
            incarnation: Incarnation(0x1234_5678),
            body,
        };
        let messages = [
            (
                "hello",
                Message::Hello {
                    protocol: PROTOCOL,
                    name: "nic0".to_owned(),
                    gid,
                },
            ),
            ("resolve", Message::Resolve { gid }),
            ("connect", Message::Connect { gid }),
            (
                "request",
                packet(Body::Request {
                    tag: 300,
                    oldest: 290,
                    data: vec![1, 2, 3].into(),
                    descriptors: Vec::new(),
                }),
            ),
            (
                "response",
                packet(Body::Response {
                    tag: 300,
                    data: Some(vec![4].into()),
                }),
            ),
            ("settled", packet(Body::Settled { oldest: 301 })),
        ];
        for (name, message) in messages {
            let seed = Seed::default().bytes(&message.encode().bytes);
            let bytes = seed.in_corpus("fabric_message", name);
            Message::decode(&bytes, Vec::new()).unwrap();
            run(&bytes);
        }
        let direct = Message::Direct {
            gid,
            incarnation: Incarnation(5),
            socket: None,
        };
        let seed = Seed::default().bytes(&direct.encode().bytes);
        let bytes = seed.in_corpus("fabric_message", "direct");
        Message::decode(&bytes, descriptors(1)).unwrap();
        run(&bytes);
    }
}
