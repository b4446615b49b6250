//! The server against two clients: one that sends hand-made bytes, and an independent
//! implementation.

// Clippy recognises tests only by their attribute, not the functions that they call.
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
