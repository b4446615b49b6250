//! The host's side of NVMe, for benchmarks, tests and programs that drive a controller themselves.
//!
//! [`Registers`] gives access to the registers (over a vfio-user socket, of a controller in the
//! same process, in a mapped BAR), and [`DmaMemory`] to the memory that host and controller share.
//! They are the base of [`Doorbell`]s, with or without shadow buffers, [`QueuePair`]s, and
//! [`Controller`], which enables a controller and creates queues.
//!
//! Not here: interrupts (the host polls), SGLs, metadata, and the meaning of I/O commands. The
//! caller encodes entries freely, so a test may submit garbage.

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
