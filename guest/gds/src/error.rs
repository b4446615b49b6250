//! The errors of this library.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::OutOfBounds;
use thiserror::Error as ThisError;

use crate::{Direction, Fault};

/// Result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, with the kernel's own reason as its source if there is one.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The GPU's device file cannot be opened.
    #[error(
        "cannot open {}; it is there once a GPU is and the module peerbar_gpu is loaded", path.display()
    )]
    Open {
        /// The device file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The driver refuses a request.
    #[error("the GPU's driver does not {what}")]
    Driver {
        /// The request: "allocate 4096 bytes of VRAM".
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The module that makes queues in addition to those of Linux' nvme refuses a request.
    #[error("the module peerbar_nvme_queues does not {what}")]
    DiskQueues {
        /// The request: "create queues of the disk".
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Memory cannot be mapped.
    #[error("cannot map {length} bytes of {what}")]
    Map {
        /// The owner of the memory.
        what: &'static str,
        /// Its length in bytes.
        length: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A range reaches beyond its buffer, or ends before it starts.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The buffer was freed.
    #[error("the buffer has been freed")]
    Freed,
    /// The buffer was made by another opening of a GPU than the one that must use it.
    #[error(
        "the buffer belongs to another opening of a GPU; use the one that made it or a clone of that, or pass the memory on \
         as a dma-buf"
    )]
    ForeignBuffer,
    /// Two operands of a command must have the same length.
    #[error("the command's operands are of {left} and {right} bytes; they must be of one length")]
    Lengths {
        /// Length of the first.
        left: u64,
        /// Length of the second.
        right: u64,
    },
    /// An operand of a kernel is too short for the kernel's threads.
    #[error("the kernel needs {needed} bytes of its operand, which has {given}")]
    ShortOperand {
        /// Bytes that the kernel accepts.
        needed: u64,
        /// Bytes of the operand.
        given: u64,
    },
    /// The GPU could not execute a command. Its channel has been restarted.
    #[error("the GPU did not execute the command: {0}")]
    Fault(Fault),
    /// A command was not done in time. It may still be done later.
    #[error("the GPU has not completed the command within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The file cannot be opened for I/O without the page cache.
    #[error("cannot open {} past the page cache{}", path.display(), no_direct_io(source))]
    OpenFile {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel does not report that it reads and writes the file without the page cache, and the
    /// policy forbids a bounce.
    #[error(
        "{} would pass through the page cache, so through host memory: its file system may take O_DIRECT, but the kernel does \
         not say that it heeds it (STATX_DIOALIGN), as it says of block devices, ext4 and xfs; use one of those, or allow a \
         bounce", .0.display()
    )]
    NotDirect(PathBuf),
    /// The transfer does not have the alignment for peer-to-peer DMA, and the policy forbids a
    /// bounce.
    #[error(
        "of {length} bytes at offset {offset} of {}, {bounced} cannot go peer to peer, since that requires whole blocks of \
         {block} bytes of the file and multiples of {memory} bytes in the buffer; align them, or allow a bounce", path.display()
    )]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// Its offset in the file.
        offset: u64,
        /// Requested bytes.
        length: u64,
        /// Bytes that would have to go through host memory.
        bounced: u64,
        /// The unit of offsets and lengths in the file.
        block: u64,
        /// The unit of offsets in the buffer.
        memory: u64,
    },
    /// The kernel does not do peer-to-peer DMA between the file's disk and the GPU.
    #[error(
        "the kernel refuses peer-to-peer DMA between the GPU and the disk of {} ({} of {} bytes at offset {}): {}; or allow \
         a bounce", at.path.display(), at.direction, at.length, at.offset, what_it_takes(source)
    )]
    PeerToPeer {
        /// The requested transfer.
        at: FileTransfer,
        /// The kernel's reason: EREMOTEIO of older kernels, EINVAL of newer ones, EFAULT for the window of an aperture,
        /// which has no pages.
        source: io::Error,
    },
    /// The buffer's memory was removed from its mapping: revoked, freed, or lost with its GPU.
    #[error(
        "{at} met a buffer without memory: it was revoked or freed, or its GPU is gone; allocate another"
    )]
    Withdrawn {
        /// The requested transfer.
        at: FileTransfer,
        /// The kernel's reason, EFAULT.
        source: io::Error,
    },
    /// A transfer failed for any other reason.
    #[error("{at} failed{}", no_leave(source))]
    Transfer {
        /// The requested transfer.
        at: FileTransfer,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A write ended early.
    #[error("{at} ended after {done}")]
    ShortWrite {
        /// The requested transfer.
        at: FileTransfer,
        /// Bytes that were written.
        done: u64,
    },
    /// A file operation other than a transfer failed.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The queue has no free entries.
    #[error("the queue holds {0} requests; wait for one before another is pushed")]
    QueueFull(u32),
    /// A queue of the GPU has too few entries.
    #[error("queues of {0} entries; NVMe's have 2 to 65535")]
    Entries(u16),
    /// A launch of the GPU's queue is not over yet.
    #[error("the GPU still works on the requests before; wait for them first")]
    LaunchInProgress,
    /// There are more requests than the GPU's queue has room for.
    #[error("{given} requests, where the GPU's queue was made for {most} at a time")]
    TooManyRequests {
        /// Number of requests.
        given: usize,
        /// Maximum number of requests.
        most: u16,
    },
    /// A request for the GPU's queue has a number of logical blocks that is not valid in a command
    /// of the disk.
    #[error("request {index} is of {blocks} logical blocks; a command takes 1 to 65536")]
    Blocks {
        /// Index of the request.
        index: usize,
        /// Its blocks.
        blocks: u32,
    },
    /// An io_uring call failed.
    #[error("cannot {what} an io_uring; sysctl kernel.io_uring_disabled may forbid it")]
    Ring {
        /// The call.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A transfer between a file and a buffer, as it was requested.
#[derive(Clone, Debug)]
pub struct FileTransfer {
    /// The file.
    pub path: PathBuf,
    /// The direction.
    pub direction: Direction,
    /// Its offset in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

impl fmt::Display for FileTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, path) = (self.direction, self.path.display());
        let (length, offset) = (self.length, self.offset);
        write!(
            f,
            "{direction} of {length} bytes at offset {offset} of {path}"
        )
    }
}

impl Error {
    /// Returns the error for a refused request, `what`.
    pub(crate) fn driver(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        Error::Driver { what, source }
    }
}

/// Returns the remedy if a file system has no direct I/O.
fn no_direct_io(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EINVAL) => "; its file system does not take O_DIRECT, as ext4 and xfs do",
        _ => "",
    }
}

/// Returns the remedy if the file may not be written.
fn no_leave(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EBADF) => "; open it with FileOptions::write(true)",
        _ => "",
    }
}

/// Returns the missing requirement of peer-to-peer DMA.
fn what_it_takes(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EFAULT) => {
            "the buffer has no pages for it, as in a GPU whose aperture is a window; it requires a static aperture"
        }
        _ => {
            "the two need a common switch without ACS redirect, or a host bridge that the kernel trusts, and nothing in \
             between that copies, such as device mapper; look for \"P2PDMA\" and \"peer-to-peer\" in the kernel's log"
        }
    }
}

/// Returns `true` if a failed direct transfer, aligned as it should be, was refused because of the
/// owner of the memory.
pub(crate) fn refuses_peer_memory(source: &io::Error) -> bool {
    matches!(
        source.raw_os_error(),
        Some(libc::EINVAL | libc::EREMOTEIO | libc::EOPNOTSUPP | libc::EFAULT)
    )
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn refused_mapping_is_distinguished_from_a_broken_disk() {
        let of = |code| refuses_peer_memory(&io::Error::from_raw_os_error(code));
        assert!(of(libc::EINVAL) && of(libc::EREMOTEIO));
        assert!(!of(libc::EIO) && !of(libc::ENOSPC));
    }

    #[test]
    fn an_error_never_repeats_its_source() {
        let error = Error::OpenFile {
            path: "/proc/file".into(),
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        let source = error.source().unwrap().to_string();
        assert!(!error.to_string().contains(&source), "{error}");
        assert!(error.to_string().ends_with("as ext4 and xfs do"), "{error}");
    }
}
