//! The real daemon against endpoints that are made by hand, well-behaved and not.

// Clippy sees tests only in functions that are marked so, not in what they call.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod announcing;
mod bridge_windows;
mod command_line;
mod hostile;
mod peer_handler;
mod raw;
mod requests;
