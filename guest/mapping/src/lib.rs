//! Memory that devices may change at any time, mapped into this process: host memory for DMA, BARs,
//! memory of GPUs.
//!
//! [`Mapping`] copies bytes, accesses single words as registers and queues require it, and serves
//! as a buffer for the kernel's file I/O. There are never references to the memory, only volatile
//! accesses of checked spans.
//!
//! Not included: I/O addresses, which address spaces assign, and protection against other
//! processes.

#![deny(unsafe_code)]

mod mapping;
mod out_of_bounds;

pub use mapping::Mapping;
pub use out_of_bounds::{OutOfBounds, WordError};
