//! Bytes that tell their own place.

use std::ops::Range;

/// A series of words of 8 bytes, each with its own offset in the low half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks(u32);

impl Marks {
    /// The content of the exporter's memory before a transfer.
    pub(super) const BAR: Self = Self(0x6261_7221);
    /// The bytes that the importer writes.
    pub(super) const DMA_BUF: Self = Self(0x6275_6621);

    /// Returns the bytes at `range`, whose bounds are multiples of 8.
    pub(super) fn bytes(self, range: Range<u64>) -> Vec<u8> {
        let word = |offset: u64| (u64::from(self.0) << 32 | offset).to_le_bytes();
        range.step_by(8).flat_map(word).collect()
    }

    /// Returns the offset that the first word of `bytes` tells, or `None` if it is of another
    /// series.
    pub(super) fn offset_of(self, bytes: &[u8]) -> Option<u64> {
        let word = u64::from_le_bytes(bytes.first_chunk().copied()?);
        (word >> 32 == u64::from(self.0)).then_some(word & u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_tells_its_series_and_its_offset() {
        let bytes = Marks::BAR.bytes(4096..8192);
        assert_eq!(bytes.len(), 4096);
        assert_eq!(Marks::BAR.offset_of(&bytes[24..]), Some(4120));
        assert_eq!(Marks::DMA_BUF.offset_of(&bytes), None);
        assert_eq!(Marks::BAR.offset_of(&bytes[4090..]), None);
    }
}
