//! The GPU from the view of a driver: through its regions, interrupts and DMA mappings, written
//! from `INTERFACE.md`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod channels;
mod commands;
mod daemon;
mod dma_log;
mod doorbell;
mod driver;
mod faults;
mod hostile;
mod kernels;
mod reset;
mod synchronization;
mod window;
