//! Messages for unit tests.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::wire::{HEADER_SIZE, Header, command};

/// Makes a message with the command REGION_READ.
pub(crate) fn message(id: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        id: U16::new(id),
        command: U16::new(command::REGION_READ),
        size: U32::new(u32::try_from(HEADER_SIZE + payload.len()).unwrap()),
        flags: U32::new(flags),
        error: U32::new(0),
    };
    [header.as_bytes(), payload].concat()
}
