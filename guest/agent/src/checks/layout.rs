//! The locations on the disks of transfers of many sizes, offsets and threads.

use anyhow::{Context, ensure};

/// The part of the disks that belongs to each thread: first the sources, then the targets, which
/// are equally large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The largest transfer in bytes.
    pub(super) largest: u64,
    /// Size of an area in bytes.
    span: u64,
}

/// The start of one transfer on the disks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyOffsets {
    pub(super) source: u64,
    pub(super) target: u64,
}

impl Layout {
    /// Returns areas for transfers of these `sizes` at these `offsets` by this number of `threads`.
    pub(super) fn of(sizes: &[u64], offsets: &[u64], threads: u32) -> anyhow::Result<Self> {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let farthest = offsets.iter().copied().max();
        ensure!(
            largest > 0 && farthest.is_some() && threads > 0,
            "there is nothing to do: it needs sizes ({sizes:?}), offsets ({offsets:?}) and threads ({threads})"
        );
        let span = largest
            .checked_add(farthest.unwrap_or(0))
            .context("sizes and offsets go beyond any disk")?;
        Ok(Layout { largest, span })
    }

    /// Returns the bytes that `threads` need of each disk.
    pub(super) fn bytes(&self, threads: u32) -> u64 {
        self.span.saturating_mul(2).saturating_mul(threads.into())
    }

    pub(super) fn offsets(&self, thread: u32, offset: u64) -> CopyOffsets {
        let source = self
            .span
            .saturating_mul(2)
            .saturating_mul(thread.into())
            .saturating_add(offset);
        CopyOffsets {
            source,
            target: source.saturating_add(self.span),
        }
    }
}

/// Returns each size at each offset.
pub(super) fn rounds(sizes: &[u64], offsets: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    sizes
        .iter()
        .flat_map(|size| offsets.iter().map(move |offset| (*size, *offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_of_threads_do_not_overlap() {
        let layout = Layout::of(&[4096, 8192], &[0, 512], 2).unwrap();
        let offsets = |source, target| CopyOffsets { source, target };
        assert_eq!(layout.largest, 8192);
        assert_eq!(layout.offsets(0, 512), offsets(512, 9216));
        assert_eq!(layout.offsets(1, 0), offsets(17408, 26112));
        assert_eq!(layout.bytes(2), 34816);
        assert!(Layout::of(&[], &[0], 1).is_err());
        assert!(Layout::of(&[4096], &[], 1).is_err());
        assert!(Layout::of(&[4096], &[0], 0).is_err());
    }
}
