//! The server against clients: one that sends hand-made bytes, and one that others have written.

// Clippy sees tests only in functions that are marked so, not in what they call.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod board;
mod descriptors;
mod ending;
mod foreign;
mod hostile;
mod listener;
mod protocol;
mod raw;
mod requests;
