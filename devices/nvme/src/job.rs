//! Commands that the kernel is doing something for.

use std::ops::Range;

use peerbar_nvme_spec::command::SubmissionEntry;

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
    /// It brings a namespace to stable storage. These, by their places, come after it.
    Flush(Range<usize>),
}
