//! A part of a buffer, as an operand of the GPU's commands.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use crate::buffer_handle::BufferHandle;
use crate::driver::Driver;
use crate::uapi::Operand;
use crate::{OutOfBounds, Result};

/// A part of a buffer, for the GPU. It is made by `span` of [`Buffer`](crate::Buffer),
/// [`HostBuffer`](crate::HostBuffer) and [`ImportedBuffer`](crate::ImportedBuffer), and always lies
/// within the buffer. A command accepts it only until the buffer is freed.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    memory: &'a BufferHandle,
    offset: u64,
    length: u64,
}

impl BufferHandle {
    pub(crate) fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>> {
        self.live()?;
        let range = resolve(range, self.size)?;
        Ok(Span {
            memory: self,
            offset: range.start,
            length: range.end.saturating_sub(range.start),
        })
    }
}

impl Span<'_> {
    /// Returns the operand for a command of `driver`.
    ///
    /// # Errors
    /// [`Error::Freed`]; [`Error::ForeignBuffer`].
    pub(crate) fn operand(&self, driver: &Arc<dyn Driver>) -> Result<Operand> {
        Ok(Operand {
            space: self.memory.space as u32,
            handle: self.memory.live_for(driver)?.handle,
            offset: self.offset,
        })
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// Returns the bytes that `range` selects in a buffer of `size` bytes.
///
/// # Errors
/// [`Error::OutOfBounds`](crate::Error::OutOfBounds).
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
        return Err(OutOfBounds { start, end, size }.into());
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
