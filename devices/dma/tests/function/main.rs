//! Tests of a function's DMA through this crate's public interface.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

mod ats;
mod errant;
mod lent;
mod no_upstream;
