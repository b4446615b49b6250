//! A server as a process, for tests: it starts in a separate folder, reports `ready`, and is killed
//! when it is dropped. Tests with random input get their seed here, too ([`seed()`]).
//!
//! ```no_run
//! # use peerbar_rig::DaemonCommand;
//! let daemon = DaemonCommand::new("peerbar-gpu").args(["--vram", "64M"]).start();
//! let client = std::os::unix::net::UnixStream::connect(daemon.socket());
//! ```
//!
//! Every function panics if something goes wrong. A daemon that ends by itself fails its test, too:
//! nothing that a client does may end a server.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

mod command;
mod daemon;
mod former_client;
mod killed_server;
mod seed;
mod usage;

pub use command::DaemonCommand;
pub use daemon::{Daemon, Exit};
pub use former_client::check_former_client;
pub use killed_server::check_killed_server;
pub use seed::{new_seed, seed};
