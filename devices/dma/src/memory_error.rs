//! Why a memory file cannot be used.

use std::io;

use thiserror::Error;

/// Why a memory file cannot be used.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// It could not be created, sealed, asked or mapped.
    #[error("memory file of {size:#x} bytes: cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Length of the file.
        size: u64,
        /// Why it failed.
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
    #[error("{mappings} mappings of {mapped:#x} bytes are lent: none of {size:#x} bytes is added")]
    TooMuch {
        /// How many mappings it has.
        mappings: usize,
        /// Bytes of them all.
        mapped: u64,
        /// Bytes of the mapping that was refused.
        size: u64,
    },
    /// A page is enough for what it has.
    #[error("memory file of {size:#x} bytes is longer than a page")]
    TooLong {
        /// Length of the file, as far as it was mapped.
        size: u64,
    },
    /// The lender took pages away: it cut the file short, or punched a hole that cannot be filled.
    #[error("memory file of {size:#x} bytes was taken away by the process that lent it")]
    Lost {
        /// Length of what was mapped.
        size: u64,
    },
    /// A peer has closed the window that the memory was behind.
    #[error("memory file of {size:#x} bytes is behind a window that its owner has closed")]
    Closed {
        /// Length of what was mapped.
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
