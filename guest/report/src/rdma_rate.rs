//! How often an adapter carries out a request.

use serde::{Deserialize, Serialize};

/// Requests of one kind that an adapter carried out one after the other, several in progress.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaRate {
    /// How many have succeeded.
    pub requests: u64,
    /// From the first one's post to the last one's completion, in seconds.
    pub seconds: f64,
}
