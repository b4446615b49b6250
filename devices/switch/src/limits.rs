//! Limits that switch and endpoints share.

use std::time::Duration;

/// How long the switch waits for an endpoint: for its name, for an acknowledgement, for the reply to a peer's request.
pub const ENDPOINT_TIME_OUT: Duration = Duration::from_secs(4);

/// The most endpoints that are attached at once, and the most vanished ones that keep their claims.
pub const MAX_PORTS: usize = 64;

/// The most requests of one endpoint that may be pending at once.
pub(crate) const MAX_REQUESTS: usize = 64;
