//! A function's DMA by the public interface of this crate.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

mod ats;
mod errant;
mod lent;
mod no_upstream;
