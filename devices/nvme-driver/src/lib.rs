//! The host's side of NVMe, for benchmarks, tests and programs that drive a controller themselves.
//!
//! [`Registers`] says how the registers are reached (a vfio-user socket, a controller in the same process, a mapped
//! BAR), [`DmaMemory`] how the memory is reached that host and controller share. On top of them stand [`Doorbell`]s,
//! with or without shadow buffers, [`QueuePair`]s, and [`Controller`], which enables a controller and creates queues.
//!
//! Not here: interrupts (the host polls), SGLs, metadata, and the meaning of I/O commands. An entry is whatever the
//! caller encodes, so a test may submit garbage.

#![forbid(unsafe_code)]

mod access;
mod controller;
mod doorbell;
mod error;
mod prp;
mod queue;

pub use access::{DmaMemory, Registers};
pub use controller::Controller;
pub use doorbell::{Doorbell, Shadow};
pub use error::DriverError;
pub use prp::{PAGE, prps};
pub use queue::{Completion, QueueMemory, QueuePair};
