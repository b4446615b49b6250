//! Commands that the kernel works on.

use std::ops::Range;

use peerbar_nvme_spec::command::SubmissionEntry;

use crate::io_queue::completion::Permit;
use crate::namespace::Extent;

/// A command, as the kernel works on it.
pub(crate) struct Job<E = SubmissionEntry, W = Work> {
    /// The number of its submission queue.
    pub(crate) queue: u16,
    pub(crate) entry: E,
    /// `None` once another job has it.
    pub(crate) permit: Option<Permit>,
    pub(crate) work: W,
}

/// A command that a worker carries out.
pub(crate) type InProgress<'a> = Job<&'a SubmissionEntry, ()>;

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

impl Job<SubmissionEntry, ()> {
    /// The command, to be carried out.
    pub(crate) fn borrowed(&mut self) -> InProgress<'_> {
        Job {
            queue: self.queue,
            entry: &self.entry,
            permit: self.permit.take(),
            work: (),
        }
    }
}

impl InProgress<'_> {
    /// The command and its permit, to be carried out later.
    pub(crate) fn owned(self) -> Job<SubmissionEntry, ()> {
        Job {
            queue: self.queue,
            entry: *self.entry,
            permit: self.permit,
            work: (),
        }
    }

    /// The command and its permit as a job for the kernel.
    pub(crate) fn job(&mut self, work: Work) -> Job {
        Job {
            queue: self.queue,
            entry: *self.entry,
            permit: self.permit.take(),
            work,
        }
    }
}
