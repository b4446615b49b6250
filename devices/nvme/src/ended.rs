//! The end of a command.

use peerbar_nvme_spec::completion::Status;
use zerocopy::little_endian::U16;

use crate::io_queue::permit::Permit;
use crate::late_data::LateData;

/// A command that has ended, and the completion that it gets.
pub(crate) struct Ended {
    /// The number of its submission queue.
    pub(crate) queue: u16,
    pub(crate) cid: U16,
    pub(crate) permit: Permit,
    pub(crate) status: Status,
    pub(crate) posting: Posting,
    /// A fault: data that is written once the host has taken the completion.
    pub(crate) late: Option<Box<LateData>>,
}

/// The number of times a completion is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Posting {
    #[default]
    Once,
    /// A fault: never.
    Never,
    /// A fault: twice, if the queue has a free entry.
    Twice,
}
