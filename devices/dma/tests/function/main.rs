//! A function's DMA, as whoever uses this crate sees it.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

mod ats;
mod errant;
mod nothing;
