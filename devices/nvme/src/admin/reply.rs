//! Outcomes of admin commands.

use peerbar_nvme_spec::completion::Status;

/// The outcome of a command that has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The command is complete, with this in dword 0 of its completion.
    Now(u32),
    /// The command completes later (Asynchronous Event Request).
    Later,
}

impl Reply {
    /// Complete, with dword 0 zero.
    pub(crate) const DONE: Self = Self::Now(0);
}

/// A completion that is not the answer to the command in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) cid: u16,
    pub(crate) dw0: u32,
    pub(crate) status: Status,
}
