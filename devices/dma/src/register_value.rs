//! The value of a register.

/// A value to write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterValue {
    /// A register of 4 bytes.
    Word(u32),
    /// A register of 8 bytes.
    Quad(u64),
}

impl RegisterValue {
    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Word(_) => size_of::<u32>(),
            Self::Quad(_) => size_of::<u64>(),
        }
    }

    /// Returns the value in the low bytes of 8, little-endian.
    pub(crate) fn bytes(self) -> [u8; 8] {
        match self {
            Self::Word(value) => u64::from(value).to_le_bytes(),
            Self::Quad(value) => value.to_le_bytes(),
        }
    }
}
