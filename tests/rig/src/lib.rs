//! The surroundings of a device in its tests.
//!
//! - [`Daemon`]: a server as a process. It starts in a separate folder, reports `ready`, and is
//!   killed when it is dropped.
//! - [`RawClient`]: a vfio-user client that sends any bytes. Their encoding ([`wire`]) shares no code
//!   with the servers.
//! - [`Client`]: a vfio-user client for drivers, which answers the device's requests for memory as
//!   the test chooses ([`Upstream`]).
//! - [`LocalDevice`]: a device in the test's process.
//! - [`Peer`]: a function in the test's process, below the same switch as the device.
//! - [`Guest`]: a device behind any [`Link`], and the [`GuestRam`] that it reaches. Drivers, such as
//!   [`nvme::Driver`], work with it.
//! - [`seed()`]: the seed of a test with random input.
//!
//! ```no_run
//! # use peerbar_rig::DaemonCommand;
//! let daemon = DaemonCommand::new("peerbar-gpu").args(["--vram", "64M"]).start();
//! let client = std::os::unix::net::UnixStream::connect(daemon.socket());
//! ```
//!
//! Functions panic if something goes wrong, except those that return a `Result`. A daemon that ends
//! by itself fails its test, too: nothing that a client does may end a server.

#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    reason = "a test panics if it fails, and its numbers are small"
)]

mod client;
mod command;
mod daemon;
mod former_client;
pub mod gpu;
mod guest_ram;
mod killed_server;
mod link;
mod local_device;
mod notes;
pub mod nvme;
mod peer;
mod proxied;
mod raw_client;
mod raw_server;
mod relayed;
mod seed;
mod server_thread;
mod upstream;
mod usage;
mod wait;
pub mod wire;

use std::time::Duration;

pub use client::Client;
pub use command::DaemonCommand;
pub use daemon::{Daemon, Exit};
pub use former_client::check_former_client;
pub use guest_ram::{GuestRam, memory_file};
pub use killed_server::check_killed_server;
pub use link::{ForeignClient, Guest, Link, MEMORY, REGISTERS, foreign_memory};
pub use local_device::{LocalDevice, event, signal, take_event, wait_for_event};
pub use notes::Notes;
pub use peer::{Peer, PeerRegisters};
pub use raw_client::RawClient;
pub use raw_server::RawServer;
pub use relayed::{is_relayed, relayed};
pub use seed::{new_seed, seed};
pub use server_thread::{Ready, ServerThread};
pub use upstream::{Answer, Upstream, UpstreamRequest};
pub use wait::{pattern, poll_until, wait_until};

/// The longest wait for an event: far longer than any takes, far shorter than a test may hang.
pub const TIME_OUT: Duration = Duration::from_secs(20);
