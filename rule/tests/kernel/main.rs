//! The rule against what the kernel's source says.

// Clippy sees tests only in functions that are marked so, not in what they call.
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod cases;
mod properties;
mod trees;
