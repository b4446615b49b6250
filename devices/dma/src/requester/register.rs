//! Writes to registers of other devices, as their doorbells.

use std::sync::atomic::{Ordering, fence};

use peerbar_dma_log::{Direction, Origin, Purpose};

use crate::error::{DmaError, DmaFault};
use crate::register_value::RegisterValue;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

use super::Requester;

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
        if address % len as u64 != 0 {
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
