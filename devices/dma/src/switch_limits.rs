//! Limits of a switch that the requester counts on.

/// The most ports.
pub const PORTS: usize = 64;
/// The most windows of a peer.
pub const WINDOWS: usize = 6;
/// The most bytes of a message between peers.
pub const MESSAGE_BYTES: usize = 32 << 10;
