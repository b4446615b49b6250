//! Facilities of the host that several servers use, independent of any protocol.
//!
//! - [`socket_file`]: Unix sockets, messages with descriptors, and the socket file of a server.
//! - [`eventfd`]: the eventfds of the process, and those that a client passes.
//! - [`server_log`]: the log, limited so that no client fills the host's disk with it.
//! - [`Size`]: byte counts as scenarios and command lines write them.

#![deny(unsafe_code)]

pub mod eventfd;
pub mod server_log;
mod size;
pub mod socket_file;

pub use size::{Size, SizeError};
