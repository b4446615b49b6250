//! A packet between an endpoint and its switch. An accepted message is encoded as one that is
//! accepted, with as many descriptors.

use peerbar_switch::{Message, WireError};

use crate::descriptors::descriptors;

/// Reads `data`, with the descriptors that it lacks.
pub fn run(data: &[u8]) {
    let message = match Message::decode(data, Vec::new()) {
        Err(WireError::Descriptors { came: 0, wanted }) => {
            let message = Message::decode(data, descriptors(wanted));
            message.expect("all descriptors are there")
        }
        Ok(message) => {
            assert_ne!(Message::decode(data, descriptors(1)).err(), None);
            message
        }
        Err(_) => return,
    };
    let packet = message.encode();
    let count = packet.descriptors.len();
    let again = Message::decode(&packet.bytes, descriptors(count)).expect("a message");
    assert_eq!(again.encode().bytes, packet.bytes);
}
