//! The real daemon: against adapters that are made by hand, well-behaved and not, and between links.

// Clippy sees tests only in functions that are marked so, not in what they call.
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
