//! Limits of a switch that the requester counts on.

use std::time::Duration;

/// The most ports.
pub const PORTS: usize = 64;
/// The most windows of a peer.
pub const WINDOWS: usize = 6;
/// The most bytes of a message between peers.
pub const MESSAGE_BYTES: usize = 32 << 10;
/// How long the owner of a window that it has closed waits for copies of its peers that are in progress there.
pub const CLOSING_TIME_OUT: Duration = Duration::from_millis(250);
