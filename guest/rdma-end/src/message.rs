//! What a conductor asks of an end, and what that answers.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Status, WorkloadCommand, WorkloadOutcome};

/// How an end is reached by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Address {
    /// Its adapter's GID, which is written as an IPv6 address is.
    pub gid: Ipv6Addr,
    /// Number of its queue pair.
    pub queue_pair: u32,
    /// The remote key of its memory.
    pub key: u32,
    /// The address that the first byte of its memory has in work requests.
    pub address: u64,
    /// Size of its memory in bytes.
    pub size: u64,
    /// The largest message of a send in bytes.
    pub largest_message: u32,
}

/// A range of an end's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

/// A work request's operation. `remote` is the offset of a byte in the other end's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// Sends to a receive of the other end, with immediate data or without.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Writes to the other end's memory; with immediate data a receive of the other end completes.
    Write {
        /// Where.
        remote: u64,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Reads from the other end's memory.
    Read {
        /// Where.
        remote: u64,
    },
}

impl Operation {
    /// The immediate data that it brings.
    #[must_use]
    pub fn immediate(self) -> Option<u32> {
        match self {
            Self::Send { immediate } | Self::Write { immediate, .. } => immediate,
            Self::Read { .. } => None,
        }
    }
}

/// What a range of memory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Content {
    /// The [`content`] of this seed.
    Seed(u64),
    /// This value in each byte.
    Value(u8),
}

impl Content {
    /// Its first `length` bytes.
    #[must_use]
    pub fn bytes(self, length: u32) -> Vec<u8> {
        match self {
            Self::Seed(seed) => content(seed, length),
            Self::Value(value) => vec![value; usize::try_from(length).unwrap_or(usize::MAX)],
        }
    }
}

/// Rights to registered memory. Its own adapter may read it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rights {
    /// Its own adapter may write it.
    pub local_write: bool,
    /// Others may write it.
    pub remote_write: bool,
    /// Others may read it.
    pub remote_read: bool,
}

impl Rights {
    /// All of them.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
    };
}

/// What is done with spare memory: of the same kind as the end's own, beside it, and registered on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SpareCommand {
    /// Allocate it in place of any before, give each byte [`SpareCommand::VALUE`], and register it. Answered by [`Answer::Spare`].
    Make(Rights),
    /// Deregister it.
    Deregister,
    /// Free it, which must be a GPU's, and allocate other memory, which gets its addresses if they are free.
    Free,
    /// Revoke it, which must be a GPU's.
    Revoke,
    /// Compare each byte that is left with [`SpareCommand::VALUE`], by the processor. Answered by [`Answer::Differs`] where it has another.
    Expect,
}

impl SpareCommand {
    /// Bytes of spare memory.
    pub const BYTES: u64 = 64 << 10;
    /// What each of them has.
    pub const VALUE: u8 = 0x3c;
}

/// Spare memory, as others reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spare {
    /// Its remote key.
    pub key: u32,
    /// The address that its first byte has in work requests.
    pub address: u64,
}

/// A state of a queue pair in which it takes no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairState {
    /// It is new.
    New,
    /// It has its key, and does not receive.
    Initialized,
    /// It is stopped.
    Stopped,
    /// It has been destroyed.
    Gone,
}

impl PairState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::New, Self::Initialized, Self::Stopped, Self::Gone];
}

/// What a conductor asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Say its address. Answered by [`Answer::Address`].
    Address,
    /// Work requests are for this end from now on. An adapter permits RDMA to those only whose GID it knows, so both ends get the
    /// other's address before the first one.
    Connect(Address),
    /// Give each byte of the memory this value, by the processor.
    Fill {
        /// Where.
        span: Span,
        /// Which.
        value: u8,
    },
    /// Write the [`content`] of this seed to the memory, by the processor.
    Put {
        /// Where.
        span: Span,
        /// Of which seed.
        seed: u64,
    },
    /// Compare the memory with the [`content`] of this seed, by the processor. Answered by [`Answer::Differs`] where it has another.
    Expect {
        /// Where.
        span: Span,
        /// Of which seed.
        seed: u64,
    },
    /// Compare each byte of the memory with this value, by the processor. Answered by [`Answer::Differs`] where it has another.
    ExpectValue {
        /// Where.
        span: Span,
        /// Which.
        value: u8,
    },
    /// Compare each byte of the memory with those of two contents, by the processor. Answered by [`Answer::Differs`] where it is of neither.
    ExpectEither {
        /// Where.
        span: Span,
        /// Which two.
        contents: [Content; 2],
    },
    /// Post a receive into the memory.
    Receive {
        /// The request's number.
        id: u64,
        /// Where.
        span: Span,
    },
    /// Post a work request with the memory as its local side.
    Post {
        /// The request's number.
        id: u64,
        /// What it does.
        operation: Operation,
        /// With which memory.
        span: Span,
    },
    /// Send the memory by a queue pair beside its own that gives up, and wait for the end of that. Answered by [`Answer::Completed`].
    SendBeside {
        /// The request's number.
        id: u64,
        /// What is sent.
        span: Span,
        /// How often the message is sent again where there is no receive for it: less than 7, which is without end.
        retries: u8,
    },
    /// Wait for the next completion. Answered by [`Answer::Completed`].
    Wait,
    /// Say the next completion, if there is one. Answered by [`Answer::Completed`] or [`Answer::Done`].
    Poll,
    /// Stop the queue pair: what is outstanding is flushed.
    Stop,
    /// Make a queue pair beside its own in this state, in place of any before. Answered by [`Answer::Pair`].
    Pair(PairState),
    /// About memory beside its own.
    Spare(SpareCommand),
    /// About requests that it keeps in progress. [`crate::Server`] does it for any end.
    Workload(WorkloadCommand),
    /// Read a file or a block device into the memory, which must be a GPU's, peer to peer only.
    Load {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        at: u64,
        /// Where in the memory.
        span: Span,
    },
    /// Write the memory, which must be a GPU's, to a file or a block device, peer to peer only.
    Store {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        at: u64,
        /// Where in the memory.
        span: Span,
    },
}

/// How a work request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Completed {
    /// The request's number.
    pub id: u64,
    /// Its status.
    pub status: Status,
    /// Bytes that a receive has taken.
    pub bytes: u32,
    /// The sender's immediate data, if it sent some.
    pub immediate: Option<u32>,
    /// From the last [`Command::Post`] to this completion, in nanoseconds.
    pub nanoseconds: u64,
}

/// What an end answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// The end's address.
    Address(Address),
    /// A work request has completed, whether it succeeded or not.
    Completed(Completed),
    /// Spare memory.
    Spare(Spare),
    /// The number of a queue pair beside its own.
    Pair(u32),
    /// What has become of the requests that it kept in progress.
    Outcome(WorkloadOutcome),
    /// The memory has not what was expected.
    Differs {
        /// Where, in words.
        reason: String,
    },
    /// It could not be done.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The `length` bytes that `seed` stands for.
#[must_use]
pub fn content(seed: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_its_seed_s_own_and_begins_alike() {
        assert_eq!(content(1, 100), content(1, 100));
        assert_ne!(content(1, 100), content(2, 100));
        assert_eq!(content(1, 100)[..50], content(1, 50));
    }
}
