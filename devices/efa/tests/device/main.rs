//! The adapter as a driver sees it: through its regions, interrupts and DMA mappings, as Linux'
//! `efa` uses them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod bring_up;
mod bus_mastering;
mod daemon;
mod driver;
mod dying;
mod event_counters;
mod events;
mod fast_regions;
mod hostile;
mod objects;
mod regions;
mod reset;
mod transfers;
mod two_daemons;
