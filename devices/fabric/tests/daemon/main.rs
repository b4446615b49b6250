//! The real daemon, against hand-made adapters, well-behaved and hostile, and between links.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod command_line;
mod direct;
mod hostile;
mod links;
mod nic;
mod process;
mod raw;
