//! Writes to registers of other devices, such as doorbells.

use std::sync::atomic::{Ordering, fence};

use peerbar_dma_log::{Direction, Origin, Purpose};
use peerbar_pci::Iova;

use crate::error::{DmaError, DmaFault};
use crate::register_value::RegisterValue;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

use super::Requester;

impl Requester {
    /// Writes a register of another device by one access, at a multiple of its size. The device
    /// sees the write after all of this thread's earlier writes through this requester (PCIe Base
    /// 6.0, 2.4.1), and has seen it when this returns. Memory at the address is written, too.
    ///
    /// A write that the switch loses ([`PeerRouting::Drop`](crate::PeerRouting::Drop)) succeeds,
    /// like any other.
    ///
    /// # Errors
    /// [`DmaFault::Unaligned`] if the address is not a multiple of the size; otherwise as for
    /// [`Requester::write`]. Nothing is written in that case.
    pub fn write_register(
        &self,
        origin: Origin,
        address: Iova,
        value: RegisterValue,
    ) -> Result<(), DmaError> {
        let tag = Tag::new(Purpose::Register, origin);
        let (bytes, len) = (value.bytes(), value.len());
        if !address.is_aligned(len as u64) {
            let refused = SegmentResult::refused(DmaFault::Unaligned);
            let segment = DmaSegment {
                address,
                len,
                direction: Direction::Write,
                started: 0,
            };
            return self.ledger.account(tag, segment, &refused);
        }
        // Earlier copies become visible first, regardless of the route of this write.
        fence(Ordering::SeqCst);
        self.write(tag, address, bytes.get(..len).unwrap_or_default())
    }
}
