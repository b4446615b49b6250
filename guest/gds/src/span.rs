//! A part of a buffer, as an operand of the GPU's commands.

use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use crate::uapi::{Operand, Space};
use crate::{Error, Result};

/// A part of a buffer, for the GPU. Made by `span` of [`Buffer`](crate::Buffer), [`HostBuffer`](crate::HostBuffer) and
/// [`ImportedBuffer`](crate::ImportedBuffer), always within it.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub(crate) operand: Operand,
    length: u64,
    buffer: PhantomData<&'a ()>,
}

impl Span<'_> {
    pub(crate) fn new(space: Space, handle: u32, range: Range<u64>) -> Self {
        Span {
            operand: Operand {
                space: space.into(),
                handle,
                offset: range.start,
            },
            length: range.end.saturating_sub(range.start),
            buffer: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// The bytes that `range` means of a buffer of `size` bytes.
///
/// # Errors
/// [`Error::OutOfBounds`].
pub(crate) fn resolve(range: impl RangeBounds<u64>, size: u64) -> Result<Range<u64>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => size,
    };
    if start > end || end > size {
        return Err(Error::OutOfBounds { start, end, size });
    }
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_every_kind_are_resolved() {
        assert_eq!(resolve(.., 10).unwrap(), 0..10);
        assert_eq!(resolve(3.., 10).unwrap(), 3..10);
        assert_eq!(resolve(..=3, 10).unwrap(), 0..4);
        assert_eq!(resolve(10..10, 10).unwrap(), 10..10);
    }

    #[test]
    fn what_is_not_within_the_buffer_is_refused() {
        assert!(resolve(..11, 10).is_err());
        assert!(resolve(11.., 10).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
        let reversed = resolve(5..4, 10);
        assert!(reversed.is_err());
        assert!(resolve(..=u64::MAX, u64::MAX).is_ok());
    }
}
