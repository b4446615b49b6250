//! The real daemon against hand-made endpoints, well-behaved and hostile.

// Clippy recognises tests only by their attribute, not the functions that they call.
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
