//! Ranges of addresses.

/// The addresses from `first` to `last`, both inclusive, so that a range may end at the end of the
/// address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl AddressRange {
    /// All addresses.
    pub(crate) const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// `size` bytes at `address`, up to the end of the address space.
    pub(crate) fn new(address: u64, size: u64) -> Self {
        Self {
            first: address,
            last: address.saturating_add(size.saturating_sub(1)),
        }
    }

    /// Returns `true` if the two have an address in common.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}
