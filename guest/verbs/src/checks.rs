//! The checks of the program, and the memory that they use.

pub(crate) mod completions;
pub(crate) mod completions_lost;
pub(crate) mod counters;
pub(crate) mod end;
mod loopback;
pub(crate) mod memory;
pub(crate) mod probe;
pub(crate) mod rate;
pub(crate) mod refusals;
pub(crate) mod report;
pub(crate) mod spare;
pub(crate) mod transfers;
pub(crate) mod vram;

use std::time::Duration;

/// Time limit of a work request: much longer than an adapter takes on a slow machine.
const TIME_OUT: Duration = Duration::from_secs(20);

/// Number of requests of each direction that a queue pair has room for.
const DEPTH: u32 = peerbar_rdma_end::DEPTH;
