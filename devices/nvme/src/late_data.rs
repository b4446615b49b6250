//! A fault: the data of a Read that the controller writes after its completion, as if their writes
//! had been reordered.
//!
//! The data follows once the host has taken the completion, by its head doorbell. A reset of the
//! controller drops it, and so does the deletion of its queue, because no DMA may happen after
//! either.

use std::sync::Arc;

use peerbar_dma::Origin;
use peerbar_pci::Iova;

/// The most late data that a thread keeps at a time, since each has its own buffer.
const MOST: usize = 64;

/// Data that is written after its completion.
pub(crate) struct LateData {
    /// The submission queue of its command.
    pub(crate) queue: u16,
    pub(crate) origin: Origin,
    /// Addresses and lengths, which cover `bytes`.
    pub(crate) ranges: Vec<(Iova, usize)>,
    pub(crate) bytes: Vec<u8>,
    /// The slot, in use until the data has been written or dropped.
    #[expect(dead_code, reason = "it counts")]
    pub(crate) slot: Slot,
}

/// The right to keep data until after its completion.
pub(crate) struct Slot(#[expect(dead_code, reason = "it counts")] Arc<()>);

/// The slots of a thread.
#[derive(Default)]
pub(crate) struct Slots(Arc<()>);

impl Slots {
    /// Returns a slot, or `None` if all are in use.
    pub(crate) fn take(&self) -> Option<Slot> {
        (Arc::strong_count(&self.0) <= MOST).then(|| Slot(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_free_again_once_it_is_dropped() {
        let slots = Slots::default();
        let mut taken: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), MOST);
        taken.pop();
        assert!(slots.take().is_some());
    }
}
