//! The part of a transfer that is peer to peer.

use std::fs::File;

use rustix::fs::{AtFlags, StatxFlags, statx};

/// The alignment that is sufficient everywhere, if the kernel does not tell it: a page.
const PAGE: u64 = 4096;

/// The alignment of a file that is read and written through the page cache anyway.
pub(crate) const PAGES: Alignment = Alignment {
    block: PAGE,
    memory: PAGE,
};

/// A file's alignment for direct I/O. Bytes that do not meet it must bounce.
///
/// In a transfer between `offset` in the file and `at` in the buffer, the whole blocks go peer to
/// peer, and the bytes before and after them do not. If the address in the buffer of the first
/// whole block is not aligned, nothing is peer to peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets and lengths in the file are multiples of this, a block's size in bytes.
    pub block: u64,
    /// Offsets in the buffer are multiples of this, in bytes.
    pub memory: u64,
}

impl Alignment {
    /// Returns the alignment that the kernel reports for `file` (Linux 6.1, STATX_DIOALIGN), or
    /// `None` if the kernel does not report that the file is read and written without the page
    /// cache. Some file systems accept O_DIRECT and copy all the same.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let status = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        if status.stx_dio_offset_align == 0 || status.stx_dio_mem_align == 0 {
            return None;
        }
        Some(Alignment {
            block: u64::from(status.stx_dio_offset_align).next_power_of_two(),
            memory: u64::from(status.stx_dio_mem_align).next_power_of_two(),
        })
    }

    /// Splits a transfer of `length` bytes between `offset` in the file and `at` in the buffer.
    pub(crate) fn split(self, offset: u64, at: u64, length: u64) -> Split {
        let head = self
            .up(offset)
            .map_or(length, |start| start.saturating_sub(offset));
        let middle = self.down(length.saturating_sub(head));
        if middle == 0 || at.wrapping_add(head) % self.memory != 0 {
            return Split {
                head: length,
                middle: 0,
                tail: 0,
            };
        }
        Split {
            head,
            middle,
            tail: length.saturating_sub(head).saturating_sub(middle),
        }
    }

    /// Returns the first block boundary at `offset` or later.
    pub(crate) fn up(self, offset: u64) -> Option<u64> {
        offset.checked_next_multiple_of(self.block)
    }

    /// Returns the start of the block that contains `offset`.
    pub(crate) fn down(self, offset: u64) -> u64 {
        offset.saturating_sub(offset.checked_rem(self.block).unwrap_or(0))
    }
}

/// The lengths of a transfer's parts in bytes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The bytes before the first whole block, or all bytes if there is no aligned block.
    pub(crate) head: u64,
    /// Whole blocks, which can go peer to peer.
    pub(crate) middle: u64,
    /// The bytes after the last whole block.
    pub(crate) tail: u64,
}

impl Split {
    /// Returns a transfer that bounces as a whole.
    pub(crate) fn bounced_whole(length: u64) -> Self {
        Split {
            head: length,
            middle: 0,
            tail: 0,
        }
    }

    /// Returns the bytes that do not go peer to peer.
    pub(crate) fn bounced(self) -> u64 {
        self.head.saturating_add(self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Alignment = Alignment {
        block: 512,
        memory: 4,
    };

    fn parts(offset: u64, at: u64, length: u64) -> (u64, u64, u64) {
        let split = DISK.split(offset, at, length);
        (split.head, split.middle, split.tail)
    }

    #[test]
    fn whole_blocks_are_the_middle() {
        assert_eq!(parts(0, 0, 4096), (0, 4096, 0));
        assert_eq!(parts(512, 4, 1024), (0, 1024, 0));
        assert_eq!(parts(500, 4, 1024), (12, 512, 500));
        assert_eq!(parts(0, 0, 513), (0, 512, 1));
    }

    #[test]
    fn without_an_aligned_block_all_is_bounced() {
        assert_eq!(parts(1, 0, 511), (511, 0, 0));
        assert_eq!(parts(511, 0, 512), (512, 0, 0));
        assert_eq!(parts(0, 1, 4096), (4096, 0, 0));
        assert_eq!(parts(500, 0, 1024), (12, 512, 500));
        assert_eq!(parts(501, 0, 1024), (1024, 0, 0));
        assert_eq!(parts(0, 0, 0), (0, 0, 0));
    }

    #[test]
    fn the_end_of_all_offsets_does_not_overflow() {
        assert_eq!(parts(u64::MAX, 0, 100), (100, 0, 0));
        assert_eq!(parts(u64::MAX - 600, u64::MAX, 100), (100, 0, 0));
    }
}
