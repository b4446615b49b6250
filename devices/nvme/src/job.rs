//! Commands that the kernel works on, or that wait for others.

use std::ops::Range;

use peerbar_nvme_spec::command::SubmissionEntry;

use crate::io_queue::permit::Permit;
use crate::namespace::{Extent, LockMode, Ticket};

/// A command, as the kernel works on it.
pub(crate) struct Job<E = SubmissionEntry, W = Work> {
    /// The number of its submission queue.
    pub(crate) queue: u16,
    pub(crate) entry: E,
    /// `None` once another job has it.
    pub(crate) permit: Option<Permit>,
    /// The blocks that it has locked.
    pub(crate) locked: Option<(Extent, LockMode)>,
    pub(crate) work: W,
}

/// A command that a worker carries out.
pub(crate) type InProgress<'a> = Job<&'a SubmissionEntry, ()>;

/// What the kernel does for a command, or what the command waits for.
pub(crate) enum Work {
    /// Other commands have its blocks locked.
    Start,
    /// The kernel moves the command's data.
    Data,
    /// It reads blocks, which may be compared with the command's data.
    Check,
    /// It brings a namespace to stable storage. These, by their indices, come after it.
    Sync { ticket: Ticket, rest: Range<usize> },
    /// It has done so, and other syncs, those before a ticket, may have failed for it.
    Synced { before: Ticket, rest: Range<usize> },
    /// It makes blocks read as zero, or other commands have the last of these locked. These come after it.
    Zero(Vec<Extent>),
}

impl<'a> InProgress<'a> {
    pub(crate) fn new(queue: u16, entry: &'a SubmissionEntry, permit: Permit) -> Self {
        Self {
            queue,
            entry,
            permit: Some(permit),
            locked: None,
            work: (),
        }
    }

    /// The command with its permit and its locks as a job.
    pub(crate) fn job(&mut self, work: Work) -> Job {
        Job {
            queue: self.queue,
            entry: *self.entry,
            permit: self.permit.take(),
            locked: self.locked.take(),
            work,
        }
    }
}
