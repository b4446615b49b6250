//! The location of a queue's entries.

use peerbar_pci::Iova;

use crate::prp::PAGE;

/// The entries of a queue in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) base: Iova,
    pub(crate) entries: u32,
}

impl Ring {
    /// Returns `true` if the ring starts at a page boundary and lies within the address space.
    pub(crate) fn fits(self, entry_bytes: u64) -> bool {
        let end = self.base.checked_add(u64::from(self.entries) * entry_bytes);
        self.base.is_aligned(PAGE) && end.is_some()
    }

    /// Returns the address of a slot.
    pub(crate) fn address(self, slot: u32, entry_bytes: u64) -> Iova {
        self.base.wrapping_add(u64::from(slot) * entry_bytes)
    }
}

/// Returns the distance from one slot of a ring of `entries` to another.
pub(crate) fn distance(from: u32, to: u32, entries: u32) -> u32 {
    (to + entries - from) % entries.max(1)
}
