//! Writes to registers of other devices, as their doorbells.

use std::sync::atomic::{Ordering, fence};

use peerbar_dma_log::{Direction, Origin, Purpose};

use crate::error::{DmaError, DmaFault};
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

use super::Requester;

/// What is written to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterValue {
    /// A register of 4 bytes.
    Word(u32),
    /// A register of 8 bytes.
    Quad(u64),
}

impl RegisterValue {
    /// Length in bytes.
    fn len(self) -> usize {
        match self {
            Self::Word(_) => size_of::<u32>(),
            Self::Quad(_) => size_of::<u64>(),
        }
    }

    /// The value in the low bytes of 8, little-endian.
    fn bytes(self) -> [u8; 8] {
        match self {
            Self::Word(value) => u64::from(value).to_le_bytes(),
            Self::Quad(value) => value.to_le_bytes(),
        }
    }
}

impl Requester {
    /// Writes a register of another device by one access, at a multiple of its size. The device sees it after all that this
    /// thread has written before by this requester (PCIe Base 6.0, 2.4.1), and has seen it when this returns. If memory is at
    /// the address, it is written.
    ///
    /// A write that the switch loses ([`PeerRouting::Drop`](crate::PeerRouting::Drop)) succeeds, as any other.
    ///
    /// # Errors
    /// [`DmaFault::Unaligned`] if the address is no multiple of the size; else as [`Requester::write`]. Nothing is written then.
    pub fn write_register(
        &self,
        origin: Origin,
        address: u64,
        value: RegisterValue,
    ) -> Result<(), DmaError> {
        let tag = Tag::new(Purpose::Register, origin);
        let (bytes, len) = (value.bytes(), value.len());
        if !address.is_multiple_of(len as u64) {
            let refused = SegmentResult::refused(DmaFault::Unaligned);
            let segment = DmaSegment {
                address,
                len,
                direction: Direction::Write,
                started: 0,
            };
            return self.account(tag, segment, &refused);
        }
        // Copies of before are seen before it, whatever the way that it takes.
        fence(Ordering::SeqCst);
        self.write(tag, address, bytes.get(..len).unwrap_or_default())
    }
}
