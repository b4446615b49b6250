//! Requests that an end keeps in progress, as the conductor names them.

use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::status::Status;

/// Number of requests in progress.
pub const DEPTH: u32 = 16;
/// Bytes of a message: the most that the adapter accepts.
pub(crate) const MESSAGE: u32 = 8928;

/// The kind of requests that an end keeps in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requests {
    /// Writes from its memory to that of the other end.
    Writes,
    /// Reads of the other end's memory.
    Reads,
    /// Messages to receives of the other end.
    Sends,
    /// Receives, whose messages it compares as they arrive.
    Receives,
    /// Receives, whose messages it cannot compare, since its memory is lost.
    ReceivesUnseen,
}

/// Requests, and the way in which they may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Their kind.
    pub(crate) requests: Requests,
    /// The seed of the contents.
    pub(crate) seed: u64,
    /// The status of requests that fail, if any may.
    pub(crate) failure: Option<Status>,
}

/// A conductor's command about requests that an end keeps in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkloadCommand {
    /// Begin. Requests continue between commands, until one fails.
    Start(Workload),
    /// Answer once this number of requests have succeeded.
    Succeed {
        /// The number.
        count: u64,
    },
    /// Post no more receives.
    Hold,
    /// For requests: continue until one fails, wait until all others end, and make one more fail.
    /// For receives: take those that have arrived, and with `flush` stop the queue pair and wait
    /// until all of them end. Answered by `Answer::Outcome`.
    Finish {
        /// `true` to flush receives.
        flush: bool,
    },
}

/// The outcome of the requests that an end kept in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkloadOutcome {
    /// Of requests.
    Asked(Asked),
    /// Of receives.
    Received(Arrivals),
}

/// The outcome of the requests of a requester.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Number of requests. Their numbers are those below it.
    pub(crate) posted: u64,
    /// The numbers of the failed requests.
    pub(crate) failed: Vec<u64>,
    /// The expected content of the slots of the target.
    pub(crate) written: Vec<Written>,
}

impl Asked {
    /// Returns the number of requests that succeeded.
    pub(crate) fn succeeded(&self) -> u64 {
        let failed = u64::try_from(self.failed.len()).unwrap_or(u64::MAX);
        self.posted.saturating_sub(failed)
    }
}

/// The last requests to a slot of the target, by their sources' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// The last one that succeeded.
    pub(crate) last: Option<u32>,
    /// A later one, which failed.
    pub(crate) failed: Option<u32>,
}
