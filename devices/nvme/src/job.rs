//! Commands that the kernel is doing something for.

use std::ops::Range;

use peerbar_nvme_spec::command::SubmissionEntry;

use crate::namespace::Extent;

/// A command that is under way.
pub(crate) struct Job {
    /// How often everything had been forgotten when it began: it is nobody's any more once that has happened again.
    pub(crate) era: u64,
    /// Of its submission queue.
    pub(crate) queue: u16,
    pub(crate) entry: SubmissionEntry,
    pub(crate) work: Work,
}

/// What the kernel does for a command.
pub(crate) enum Work {
    /// It moves the command's data, and brings what is written to stable storage, or leaves that to a Flush.
    Data { durable: bool },
    /// It reads blocks, which may be compared with the command's data.
    Check,
    /// It brings a namespace to stable storage. These, by their places, come after it.
    Flush(Range<usize>),
    /// It makes blocks read as zero. These come after them.
    Zero(Vec<Extent>),
}

impl Job {
    /// What is done for a command of I/O queue `queue`.
    pub(crate) fn new(era: u64, queue: u16, entry: &SubmissionEntry, work: Work) -> Self {
        Self {
            era,
            queue,
            entry: *entry,
            work,
        }
    }
}
