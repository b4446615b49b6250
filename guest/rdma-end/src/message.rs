//! The conductor's commands to an end, and its answers.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::load::{WorkloadCommand, WorkloadOutcome};
use crate::status::Status;

/// The address of an end for the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Address {
    /// Its adapter's GID, in the notation of an IPv6 address.
    pub gid: Ipv6Addr,
    /// Number of its queue pair.
    pub queue_pair: u32,
    /// The remote key of its memory.
    pub key: u32,
    /// The address of the first byte of its memory in work requests.
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
    /// Sends to a receive of the other end, optionally with immediate data.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Writes to the other end's memory. With immediate data, a receive of the other end completes.
    Write {
        /// The destination.
        remote: u64,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Reads from the other end's memory.
    Read {
        /// The source.
        remote: u64,
    },
}

impl Operation {
    /// Returns its immediate data.
    #[must_use]
    pub fn immediate(self) -> Option<u32> {
        match self {
            Self::Send { immediate } | Self::Write { immediate, .. } => immediate,
            Self::Read { .. } => None,
        }
    }
}

/// The content of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Content {
    /// The [`content`] of this seed.
    Seed(u64),
    /// This value in each byte.
    Value(u8),
}

impl Content {
    /// Returns its first `length` bytes.
    #[must_use]
    pub fn bytes(self, length: u32) -> Vec<u8> {
        match self {
            Self::Seed(seed) => content(seed, length),
            Self::Value(value) => vec![value; usize::try_from(length).unwrap_or(usize::MAX)],
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seed(seed) => write!(f, "the content of seed {seed}"),
            Self::Value(value) => write!(f, "{value:#04x} in each byte"),
        }
    }
}

/// Rights to registered memory. Its own adapter may always read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rights {
    /// Its own adapter may write to it.
    pub local_write: bool,
    /// Others may write to it.
    pub remote_write: bool,
    /// Others may read from it.
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

/// A command about spare memory, which is of the same kind as the end's own memory and separately
/// registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SpareCommand {
    /// Allocate it in place of any earlier one, fill it with [`SpareCommand::VALUE`], and register
    /// it. Answered by [`Answer::Spare`].
    Make(Rights),
    /// Deregister it.
    Deregister,
    /// Free it, which must be a GPU's, and allocate other memory, which gets its addresses if they
    /// are free.
    Free,
    /// Revoke it, which must be a GPU's.
    Revoke,
    /// Compare each remaining byte with [`SpareCommand::VALUE`], by the processor. Answered by
    /// [`Answer::Differs`] if one differs.
    Expect,
}

impl SpareCommand {
    /// Bytes of spare memory.
    pub const BYTES: u64 = 64 << 10;
    /// The value of each byte.
    pub const VALUE: u8 = 0x3c;
}

/// Spare memory, as others address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spare {
    /// Its remote key.
    pub key: u32,
    /// The address of its first byte in work requests.
    pub address: u64,
}

/// A state of a queue pair in which it accepts no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairState {
    /// New.
    New,
    /// With its key set, not receiving.
    Initialized,
    /// Stopped.
    Stopped,
    /// Destroyed.
    Gone,
}

impl PairState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::New, Self::Initialized, Self::Stopped, Self::Gone];
}

/// Tests of an end that need no other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnTests {
    /// Requests of its program that its adapter must refuse, with memory of the guest.
    Requests,
    /// Memory of its GPU that its adapter's driver must not register.
    Registrations,
    /// Completion queues in memory of the kind of its own.
    Completions,
    /// The loss of the memory of the queue of [`Command::CompleteWrites`].
    LostCompletions,
}

/// The results of an end's own tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnResults {
    /// Each with its name.
    pub tests: Vec<Tested>,
    /// Number of completions that its adapter has written to queues in memory of the end.
    pub completions: u64,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tested {
    /// Its name.
    pub name: String,
    /// The reason why it failed, if it did.
    pub failure: Option<String>,
}

/// A command of a conductor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Return its address. Answered by [`Answer::Address`].
    Address,
    /// Send work requests to this end from now on. An adapter permits RDMA only to adapters whose
    /// GID it knows, so both ends get the other's address before the first request.
    Connect(Address),
    /// Write this content to the memory, by the processor.
    Put {
        /// The memory.
        span: Span,
        /// The content.
        content: Content,
    },
    /// Compare each byte of the memory with those of two contents, by the processor. Answered by
    /// [`Answer::Differs`] if one matches neither.
    Expect {
        /// The memory.
        span: Span,
        /// The two contents.
        contents: [Content; 2],
    },
    /// Post a receive into the memory.
    Receive {
        /// The request's number.
        id: u64,
        /// The memory.
        span: Span,
    },
    /// Post a work request with the memory as its local side.
    Post {
        /// The request's number.
        id: u64,
        /// Its operation.
        operation: Operation,
        /// The memory.
        span: Span,
    },
    /// Send the memory by a spare queue pair that gives up, and wait for the end of the request.
    /// Answered by [`Answer::Completed`].
    SendBeside {
        /// The request's number.
        id: u64,
        /// The memory.
        span: Span,
        /// Number of times that the message is sent again if there is no receive for it: less than
        /// 7, which means without limit.
        retries: u8,
    },
    /// Wait for the next completion. Answered by [`Answer::Completed`].
    Wait,
    /// Return the next completion, if there is one. Answered by [`Answer::Completed`] or
    /// [`Answer::Done`].
    Poll,
    /// Stop the queue pair: outstanding requests are flushed.
    Stop,
    /// Make a spare queue pair in this state, in place of any earlier one. Answered by
    /// [`Answer::Pair`].
    Pair(PairState),
    /// Execute a command about spare memory.
    Spare(SpareCommand),
    /// Run tests that need no other end. Answered by [`Answer::Tested`].
    OwnTests(OwnTests),
    /// Complete writes, one after the other, in a queue in memory of the kind of its own, until
    /// that memory is lost. Answered once some have completed; they continue between commands.
    CompleteWrites,
    /// Execute a command about requests that it keeps in progress. [`crate::Server`] does so for
    /// any end.
    Workload(WorkloadCommand),
    /// Read a file or a block device into the memory, which must be a GPU's, peer to peer only.
    Load {
        /// The file.
        path: PathBuf,
        /// The offset in the file.
        at: u64,
        /// The memory.
        span: Span,
    },
    /// Write the memory, which must be a GPU's, to a file or a block device, peer to peer only.
    Store {
        /// The file.
        path: PathBuf,
        /// The offset in the file.
        at: u64,
        /// The memory.
        span: Span,
    },
}

impl Command {
    /// Compares the memory with one content.
    #[must_use]
    pub fn expect(span: Span, content: Content) -> Self {
        let contents = [content; 2];
        Self::Expect { span, contents }
    }
}

/// A completed work request.
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
    /// Time from the last [`Command::Post`] to this completion, in nanoseconds.
    pub nanoseconds: u64,
}

/// An answer of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The command was executed.
    Done,
    /// The end's address.
    Address(Address),
    /// A work request has completed, successfully or not.
    Completed(Completed),
    /// Spare memory.
    Spare(Spare),
    /// The number of a spare queue pair.
    Pair(u32),
    /// The results of its own tests.
    Tested(OwnResults),
    /// The outcome of the requests that it kept in progress.
    Outcome(WorkloadOutcome),
    /// The memory does not have the expected content.
    Differs {
        /// The location, in words.
        reason: String,
    },
    /// The command could not be executed.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// Returns the `length` bytes of the content of `seed`.
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
    fn content_is_named_by_its_seed_or_value() {
        assert_eq!(Content::Seed(7).to_string(), "the content of seed 7");
        assert_eq!(Content::Value(5).to_string(), "0x05 in each byte");
    }

    #[test]
    fn content_is_its_seed_s_own_and_begins_alike() {
        assert_eq!(content(1, 100), content(1, 100));
        assert_ne!(content(1, 100), content(2, 100));
        assert_eq!(content(1, 100)[..50], content(1, 50));
    }
}
