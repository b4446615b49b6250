//! I/O queues, and the workers that serve them.
//!
//! A [`group::QueueGroup`] is a completion queue with the submission queues that are bound to it.
//! One worker owns them all. Each queue owns its doorbell. The path of a command:
//!
//! 1. `doorbell`: the tail doorbell has a new value, in the register page or in the shadow buffer;
//! 2. `submission`: `fetch` reserves a completion entry, so that a full completion queue stops
//!    fetching, and yields a command with the permit for that entry;
//! 3. `crate::io` executes it, or hands it to the kernel together with the permit;
//! 4. `completion`: `stage` takes the permit back, `flush` writes a batch of entries;
//! 5. `interrupt`: raises the vector, unless the interrupt is coalesced with later ones.
//!
//! A [`queue_set::QueueSet`] has all groups of a worker, and a [`context::Context`] the state that
//! they share. `poll` decides whether an idle worker polls or blocks. `request` has the engine's
//! requests to a worker, such as adding a queue; `worker/requests.rs` executes them.

pub(crate) mod completion;
mod context;
pub(crate) mod doorbell;
#[cfg(test)]
mod doorbell_tests;
#[cfg(test)]
mod fixture;
pub(crate) mod group;
pub(crate) mod interrupt;
#[cfg(test)]
mod interrupt_tests;
mod late_writes;
pub(crate) mod permit;
pub(crate) mod poll;
#[cfg(test)]
mod poll_tests;
mod queue_set;
pub(crate) mod request;
pub(crate) mod ring;
#[cfg(test)]
mod ring_tests;
pub(crate) mod submission;
pub(crate) mod worker;
