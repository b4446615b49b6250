//! Base address registers.

use thiserror::Error;

/// Smallest BAR that makes sense here: one page, so that it can be mapped.
const MIN_BYTES: u64 = 4096;

/// Why a BAR cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BarError {
    /// Its size is no power of two or below a page.
    #[error(
        "BAR{index} of {size:#x} bytes: the size must be a power of two of at least {MIN_BYTES:#x}"
    )]
    Size {
        /// Which BAR.
        index: u8,
        /// Its size.
        size: u64,
    },
    /// A 64-bit BAR takes two registers of the six, and starts at an even one here.
    #[error("BAR{index}: a 64-bit BAR is number 0, 2 or 4")]
    Index {
        /// Which BAR.
        index: u8,
    },
}

/// A 64-bit memory BAR (PCI Local Bus 3.0, 6.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    index: u8,
    size: u64,
    prefetchable: bool,
}

impl Bar {
    /// BAR `index` (0, 2 or 4) of `size` bytes, a power of two of at least 4096.
    pub fn new(index: u8, size: u64, prefetchable: bool) -> Result<Self, BarError> {
        if !matches!(index, 0 | 2 | 4) {
            return Err(BarError::Index { index });
        }
        if !size.is_power_of_two() || size < MIN_BYTES {
            return Err(BarError::Size { index, size });
        }
        Ok(Self {
            index,
            size,
            prefetchable,
        })
    }

    /// Number of its first register.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The register pair as it reads after reset: type bits, address 0.
    pub(crate) fn initial(&self) -> u64 {
        const TYPE_64_BIT: u64 = 0b100;
        const PREFETCHABLE: u64 = 0b1000;
        TYPE_64_BIT | if self.prefetchable { PREFETCHABLE } else { 0 }
    }

    /// Which bits of the register pair the guest can write.
    pub(crate) fn mask(&self) -> u64 {
        !(self.size - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_possible_bars_can_be_made() {
        assert!(Bar::new(0, 0x4000, false).is_ok());
        assert_eq!(
            Bar::new(1, 0x4000, false),
            Err(BarError::Index { index: 1 })
        );
        assert_eq!(
            Bar::new(6, 0x4000, false),
            Err(BarError::Index { index: 6 })
        );
        for size in [0, 0x800, 0x3000, u64::MAX] {
            assert_eq!(
                Bar::new(2, size, true),
                Err(BarError::Size { index: 2, size })
            );
        }
    }
}
