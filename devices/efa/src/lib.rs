//! An Elastic Fabric Adapter (EFA) for Linux' unmodified driver `efa` and rdma-core's provider of
//! that name.
//!
//! # Emulated
//! An adapter of the fourth generation (PCI ID 1d0f:efa3). Registers that are read without a read
//! on the bus, reset, the admin queue with entries of 64 and of 128 bytes and checksums, polled or
//! with interrupts, the asynchronous event queue with its keep-alive. Device, queue and network
//! attributes, host info, protection domains, user access regions, address handles, completion and
//! event queues, queue pairs (SRD and UD), memory regions with inline, contiguous and indirect
//! lists of pages, regions whose memory work requests add, event counters, statistics. An MSI-X
//! vector for the admin queues and one for each event queue.
//!
//! # Not emulated
//! The Ethernet device that an instance has in addition. Queues in memory regions. Statistics of
//! one queue. Service, a vendor-specific command.
//!
//! # Threads
//! The thread that answers the guest's accesses touches only registers and doorbells. The engine, a
//! separate thread, executes admin commands. The worker of [`data`] moves data for the [`objects`]
//! that the commands have made.
#![forbid(unsafe_code)]

mod admin_queue;
mod async_events;
mod attributes;
mod commands;
mod config;
pub mod data;
mod doorbells;
mod efa;
mod engine;
mod entry;
mod interrupts;
pub mod limits;
pub mod memory_bar;
pub mod objects;
mod registers;
#[cfg(feature = "stepped")]
mod stepped;
mod work;

pub use config::{Config, ConfigError};
pub use efa::Efa;
pub use peerbar_fabric::AttachError;
#[cfg(feature = "stepped")]
pub use stepped::SteppedEfa;
