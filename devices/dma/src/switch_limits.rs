//! Limits of a switch that the requester relies on.

use std::time::Duration;

/// Limit of the ports.
pub const PORTS: usize = 64;
/// Limit of a peer's windows.
pub const WINDOWS: usize = 6;
/// Limit of the bytes of a message between peers.
pub const MESSAGE_BYTES: usize = 32 << 10;
/// Time for which the owner of a closed window waits for its peers' copies in progress there.
pub const CLOSING_TIME_OUT: Duration = Duration::from_millis(250);
