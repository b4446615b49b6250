//! The rule compared with the kernel's source.

// Clippy recognises tests only by their attribute, not the functions that they call.
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod cases;
mod properties;
mod trees;
