//! The daemons without a guest: parts are killed, stopped or disconnected at thousands of random
//! moments, or run for a long time. `scripts/test --only dying-daemons --only soak` runs it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

mod blocks;
mod channel;
mod confinement;
mod conformance;
mod disk;
mod dying;
#[path = "../environment.rs"]
mod environment;
mod gpu;
mod gpu_initiated;
mod judgement;
mod machine;
mod memory;
mod peer_queues;
mod persistent_memory;
mod server;
mod shared;
mod soak;
