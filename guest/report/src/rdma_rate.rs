//! The rate at which an adapter executes requests.

use serde::{Deserialize, Serialize};

/// Requests of one kind that an adapter executed one after the other, several in progress.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaRate {
    /// Number of requests that succeeded.
    pub requests: u64,
    /// Time from the first request's post to the last one's completion, in seconds.
    pub seconds: f64,
}
