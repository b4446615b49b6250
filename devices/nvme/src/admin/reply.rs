//! How admin commands end.

use peerbar_nvme_spec::completion::Status;

/// What a command comes to, if not to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is complete, with this in dword 0 of its completion.
    Now(u32),
    /// It completes later, by itself (Asynchronous Event Request).
    Later,
}

impl Reply {
    /// Complete, with nothing to say.
    pub(crate) const DONE: Self = Self::Now(0);
}

/// A completion that is not the answer to the command in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) cid: u16,
    pub(crate) dw0: u32,
    pub(crate) status: Status,
}
