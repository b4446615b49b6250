//! The reasons why a memory file cannot be used.

use std::io;

use thiserror::Error;

/// The reason why a memory file cannot be used.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// A system call on the file failed.
    #[error("memory file of {size:#x} bytes: cannot {action}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// Length of the file.
        size: u64,
        /// The reason.
        source: io::Error,
    },
    /// A page fault in such a file may wait for another process, as in FUSE, or for a network.
    #[error(
        "file of another process is neither in memory (memfd, tmpfs, hugetlbfs) nor on a block device"
    )]
    NotLocal,
    /// A page fault in such a file may wait for a disk.
    #[error("file of another process is not in memory (memfd, tmpfs, hugetlbfs)")]
    NotInMemory,
    /// The lender has too much of its memory mapped here.
    #[error(
        "cannot add a mapping of {size:#x} bytes: {mappings} mappings of {mapped:#x} bytes are lent"
    )]
    TooMuch {
        /// The number of its mappings.
        mappings: usize,
        /// Their size in bytes.
        mapped: u64,
        /// Size of the refused mapping in bytes.
        size: u64,
    },
    /// The file is too long: a page is enough for its content.
    #[error("memory file of {size:#x} bytes is longer than a page")]
    TooLong {
        /// Length of the file, as far as it was mapped.
        size: u64,
    },
    /// The lender took pages away: it shortened the file, or punched a hole that cannot be filled.
    #[error("memory file of {size:#x} bytes was taken away by the process that lent it")]
    Lost {
        /// Length of the mapping.
        size: u64,
    },
    /// A peer has closed the window in front of the memory.
    #[error("memory file of {size:#x} bytes is behind a window that its owner has closed")]
    Closed {
        /// Length of the mapping.
        size: u64,
    },
    /// The span leaves the file.
    #[error("span {offset:#x}+{len:#x} leaves a memory file of {size:#x} bytes")]
    OutOfRange {
        /// First byte of the span.
        offset: u64,
        /// Length of the span.
        len: u64,
        /// Length of the file.
        size: u64,
    },
}
