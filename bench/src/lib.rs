//! What the devices can do, and what the machine could.
//!
//! Every figure stands beside a limit that was measured in the same run, in turn with it: a bare loop, an empty ring,
//! another program's device. On a machine with other work the figure alone says little, the ratio still does. Figures
//! and what they were measured with make a [`Report`], which is printed as a table and kept as JSON; [`compare`] sets
//! two of them side by side.
//!
//! The host-side suites ([`host`], [`growth`], [`instructions`], [`peers`]) need no guest: a small NVMe driver in this crate drives a server over its socket,
//! with queues and data in shared memory. It uses shadow doorbells and a doorbell page that can be mapped where the
//! server offers them, and messages for what is left.

#![forbid(unsafe_code)]

mod compare;
mod controller;
mod cpu_time;
mod drive;
mod error;
mod figure;
pub mod growth;
pub mod host;
pub mod instructions;
mod jobs;
mod limits;
mod loaded_queue;
mod machine;
mod memory;
mod options;
pub mod peers;
mod report;
mod scattered_pages;
mod server;
mod setup;
mod spread;
mod table;
mod vfio_user;

pub use compare::compare;
pub use cpu_time::cpu_time;
pub use error::Error;
pub use figure::{Beside, Figure, Goal, Latency};
pub use options::{Options, Progress};
pub use report::Report;
pub use spread::median;
