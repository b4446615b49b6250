//! The direct connections between adapters, which the fabric can end at any time: it keeps one end of each.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use peerbar_host::socket_file::descriptors::discard;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::gid::Gid;

/// Source and destination of a packet.
pub(crate) type Pair = (Gid, Gid);

/// Time within which the connection of two adapters is not replaced.
const INTERVAL: Duration = Duration::from_millis(500);

/// The connections, by their adapters.
#[derive(Debug, Default)]
pub(super) struct PairConnections(BTreeMap<Pair, PairConnection>);

#[derive(Debug)]
struct PairConnection {
    names: (String, String),
    /// A copy of the first adapter's end. It can end the connection for both.
    end: OwnedFd,
    since: Instant,
}

impl PairConnections {
    /// Returns the number of connections, including those that an adapter has ended.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Makes a connection for two adapters that do not both have one, in place of an earlier
    /// one. Returns an end for each, or `None` if they got a connection just now.
    pub(super) fn open(
        &mut self,
        (one, other): Pair,
        names: (&str, &str),
        now: Instant,
    ) -> Option<[OwnedFd; 2]> {
        let pair = if one < other {
            (one, other)
        } else {
            (other, one)
        };
        let is_new = |it: &PairConnection| now < it.since + INTERVAL;
        if self.0.get(&pair).is_some_and(is_new) {
            return None;
        }
        let ends = socket_pair().and_then(|(near, far)| {
            let end = rustix::io::fcntl_dupfd_cloexec(&near, 0)?;
            Ok((near, far, end))
        });
        let ends = ends.inspect_err(|error| log::debug!("no direct connection: {error}"));
        let (near, far, end) = ends.ok()?;
        let connection = PairConnection {
            names: (names.0.to_owned(), names.1.to_owned()),
            end,
            since: now,
        };
        self.0.insert(pair, connection);
        Some([near, far])
    }

    /// Ends the connections of an adapter.
    pub(super) fn end_of(&mut self, gid: Gid) {
        self.0
            .retain(|(one, other), _| ![one, other].contains(&&gid));
    }

    /// Ends the connections between adapters of such names.
    pub(super) fn end_between(&mut self, is_meant: impl Fn((&str, &str)) -> bool) {
        self.0.retain(|_, it| !is_meant((&it.names.0, &it.names.1)));
    }
}

impl Drop for PairConnection {
    /// Ends the connection: neither adapter can use it any more. Packets that the first one has not
    /// received may be lost, which a fabric may do.
    fn drop(&mut self) {
        // An adapter may have ended it.
        let _ = shutdown(&self.end, Shutdown::Both);
        discard(&self.end);
    }
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}
