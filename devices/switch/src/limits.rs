//! Limits that the switch and the endpoints share.

use std::time::Duration;

use peerbar_dma::switch_limits;

/// Number of the protocol: switch and endpoints must agree on it.
pub const PROTOCOL: u32 = 6;

/// Time that the switch waits for an endpoint's name, and for its reply to a peer's request.
pub const ENDPOINT_TIME_OUT: Duration = Duration::from_secs(4);

/// Time that an announcement waits, and the guest with it, if it closes a window or comes before an
/// earlier one is acknowledged. The lease keeps endpoints from beginning an access to a closed
/// window, so the wait is for copies in progress. It excludes an endpoint that has not acknowledged
/// a change for that time already.
pub const CLOSING_TIME_OUT: Duration = switch_limits::CLOSING_TIME_OUT;

/// Time within which a taken name may become free, for example that of an endpoint whose end the
/// switch has not read yet.
pub(crate) const NAME_TIME_OUT: Duration = Duration::from_secs(1);

/// Time that an endpoint waits for its switch, which itself waits for [`CLOSING_TIME_OUT`] at most.
pub(crate) const SWITCH_TIME_OUT: Duration = Duration::from_secs(4);

/// The most endpoints that are attached at once, and the most vanished ones that keep their claims.
pub const MAX_PORTS: usize = switch_limits::PORTS;

/// The most requests of one endpoint that may be pending at once.
pub(crate) const MAX_REQUESTS: usize = 64;

/// The most windows of one endpoint: a function has six BARs (PCI Local Bus 3.0, 6.2.5).
pub const MAX_WINDOWS: usize = switch_limits::WINDOWS;

/// The most descriptors that come with one message: of windows, and of their leases.
pub const MAX_DESCRIPTORS: usize = MAX_WINDOWS + 1;

/// The most data of one request to a peer, in bytes.
pub const MAX_DATA: usize = switch_limits::MESSAGE_BYTES;

/// The longest message in bytes: data or windows, and a few numbers of at most 10 bytes each.
pub const MAX_PACKET: usize = MAX_DATA + 64;

/// The longest name of an endpoint in bytes.
pub(crate) const MAX_NAME: usize = 32;

/// The shortest time between two questions about the bridge windows.
pub(crate) const BRIDGES_MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Time from an answer to the next question, if no window has waited for a shorter time. A window
/// that is withheld for this time is logged.
pub(crate) const BRIDGES_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which the switch no longer waits for an answer.
pub(crate) const BRIDGES_TIME_OUT: Duration = Duration::from_secs(15);

/// The longest answer in bytes: a number, and a name and two ranges for each port.
pub(crate) const MAX_BRIDGE_WINDOWS: usize = MAX_PORTS * (MAX_NAME + 128);
