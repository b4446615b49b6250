//! Limits that the fabric and its adapters share.

use std::time::Duration;

/// Number of the protocol: fabric and adapters must agree on it.
pub const PROTOCOL: u32 = 2;

/// The most data of one datagram, request or response, in bytes.
pub const MAX_DATA: usize = 32 << 10;

/// The longest message in bytes: data and a few numbers of at most 10 bytes each.
pub const MAX_PACKET: usize = MAX_DATA + 96;

/// The most descriptors that come with one request: that of a staging buffer.
pub const MAX_DESCRIPTORS: usize = 1;

/// The longest name of an adapter in bytes.
pub(crate) const MAX_NAME: usize = 32;

/// The most adapters that are attached at once.
pub const MAX_ADAPTERS: usize = 64;

/// The largest difference between the tags of one adapter's pending requests to another.
pub const MAX_REQUESTS: usize = 64;

/// The most adapters with which an adapter communicates at once.
pub(crate) const MAX_PEERS: usize = 256;

/// The most bytes of responses that an adapter keeps for all its peers, because these may ask for
/// them again. A request without a response counts as the longest response. A peer with less than
/// its share is served nevertheless, so the limit may be exceeded by [`MAX_PEERS`] shares and as
/// many longest responses.
pub(crate) const MAX_KEPT: usize = 32 << 20;
pub(crate) const KEPT_SHARE: usize = 2 * MAX_DATA;

/// The most packets of one adapter that the fabric holds, and the most of them that wait for one
/// other adapter. It drops further packets.
pub(crate) const MAX_HELD: usize = 512;
pub(crate) const MAX_WAITING: usize = 128;

/// The most descriptors of one adapter's packets that the fabric holds.
pub(crate) const MAX_HELD_DESCRIPTORS: usize = 64;

/// The most answers of the fabric itself that wait for an adapter to read. It drops further
/// answers.
pub(crate) const MAX_ANSWERS: usize = 128;

/// Time that the fabric waits for the name of an adapter.
pub(crate) const HELLO_TIME_OUT: Duration = Duration::from_secs(4);

/// Time within which a taken name or GID may become free, for example that of an adapter whose end
/// the fabric has not read yet.
pub(crate) const NAME_TIME_OUT: Duration = Duration::from_secs(1);

/// Time that an adapter waits for the fabric's answer to its Hello.
pub(crate) const FABRIC_TIME_OUT: Duration = Duration::from_secs(5);

/// Time that an adapter waits for a sign of life of a peer with a pending request.
pub const PEER_TIME_OUT: Duration = Duration::from_secs(4);

/// The longest duration of a request, even if its peer is alive.
pub const REQUEST_TIME_OUT: Duration = Duration::from_secs(30);
