//! Limits of a switch that the requester counts on. `peerbar-switch` depends on none of this and has constants of its own, which
//! `peerbar-endpoint` compares with these.

/// The most ports.
pub const PORTS: usize = 64;
/// The most windows of a peer.
pub const WINDOWS: usize = 6;
/// The most bytes of a message between peers.
pub const MESSAGE_BYTES: usize = 32 << 10;
