//! Base address registers.

use thiserror::Error;

/// Bits of a BAR's first register (PCI Local Bus 3.0, 6.2.5.1).
const IO_SPACE: u32 = 0b1;
const TYPE: u32 = 0b110;
const TYPE_64_BIT: u32 = 0b100;
const PREFETCHABLE: u32 = 0b1000;

/// Smallest memory BAR that a register can describe.
const SMALLEST: u64 = 16;
/// Smallest useful BAR: one page, so that it can be mapped.
const MIN_BYTES: u64 = 4096;

/// Errors of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BarError {
    /// The size is not a power of two, or is less than a page.
    #[error(
        "BAR{index} of {size:#x} bytes: the size must be a power of two of at least {MIN_BYTES:#x}"
    )]
    Size {
        /// The BAR.
        index: u8,
        /// Its size.
        size: u64,
    },
    /// A 64-bit BAR takes two of the six registers, and must start at an even one.
    #[error("BAR{index}: a 64-bit BAR is number 0, 2 or 4")]
    Index {
        /// The BAR.
        index: u8,
    },
}

/// A memory BAR (PCI Local Bus 3.0, 6.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    index: u8,
    size: u64,
    prefetchable: bool,
    is_wide: bool,
}

impl Bar {
    /// Makes 64-bit BAR `index` (0, 2 or 4) of `size` bytes, a power of two of at least 4096.
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
            is_wide: true,
        })
    }

    /// Makes a BAR of `size` bytes as another function has it, from its first register. Returns
    /// `None` if that is a BAR in I/O space or the size is impossible.
    pub(crate) fn from_register(index: u8, register: u32, size: u64) -> Option<Self> {
        let is_wide = register & TYPE == TYPE_64_BIT;
        let most = if is_wide { 1 << 63 } else { 1 << 31 };
        let is_possible = size.is_power_of_two() && (SMALLEST..=most).contains(&size);
        (register & IO_SPACE == 0 && is_possible).then_some(Self {
            index,
            size,
            prefetchable: register & PREFETCHABLE != 0,
            is_wide,
        })
    }

    /// Returns `true` if it takes two registers.
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Returns the number of its first register.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the register, or pair of registers, after reset: type bits, address 0.
    pub(crate) fn initial(&self) -> u64 {
        let size = if self.is_wide { TYPE_64_BIT } else { 0 };
        let kind = if self.prefetchable { PREFETCHABLE } else { 0 };
        u64::from(size | kind)
    }

    /// Returns the bits of the register, or pair of registers, that the guest can write.
    pub(crate) fn mask(&self) -> u64 {
        let register = if self.is_wide {
            u64::MAX
        } else {
            u32::MAX.into()
        };
        register & !(self.size - 1)
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
