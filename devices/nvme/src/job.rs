//! Commands that the kernel works on, or that wait for others.

use std::ops::Range;

use peerbar_nvme_spec::command::SubmissionEntry;

use crate::io_queue::permit::Permit;
use crate::namespace::{Extent, LockMode, Ticket};

/// A command that the kernel works on.
pub(crate) struct Job<E = SubmissionEntry, W = Work> {
    /// The number of its submission queue.
    pub(crate) queue: u16,
    pub(crate) entry: E,
    /// The permit, or `None` once another job has it.
    pub(crate) permit: Option<Permit>,
    /// The blocks that the command has locked.
    pub(crate) locked: Option<(Extent, LockMode)>,
    pub(crate) work: W,
}

/// A command that a worker executes.
pub(crate) type InProgress<'a> = Job<&'a SubmissionEntry, ()>;

/// The operation that the kernel performs for a command, or that the command waits for.
pub(crate) enum Work {
    /// Other commands have its blocks locked.
    Start,
    /// The kernel moves the command's data.
    Data,
    /// The kernel reads blocks, which may be compared with the command's data.
    Check,
    /// The kernel brings a namespace to stable storage. The namespaces with the indices in `rest`
    /// follow.
    Sync { ticket: Ticket, rest: Range<usize> },
    /// The kernel has done so, but it may have reported a failure to another sync: the command
    /// waits for the syncs before a ticket.
    Synced { before: Ticket, rest: Range<usize> },
    /// The kernel makes blocks read as zero, or other commands have the last of these locked. These
    /// extents follow.
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

    /// Returns the command as a job, with its permit and its locks.
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
