//! The time that transfers take on the link between a function and the port above it.
//!
//! A link carries data in both directions at once. Each direction has a meter: the time at which
//! all reserved bytes will be through. The meters lie in shared memory, so that all transfers on
//! the link share it, in any process: the function's own DMA, and that of its peers to and from its
//! memory. A transfer reserves one slice at a time and waits for it before the next, so that
//! concurrent transfers get equal shares.
//!
//! A peer may scribble on the meters. It delays others by at most [`LONGEST_QUEUE`] for each slice,
//! and a request by at most the time that `requester/transfer.rs` lets it wait for links.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use peerbar_dma_log::Direction;

use crate::link_speed::{Bandwidth, LinkSpeed};
use crate::memory::{MemoryFile, Span};
use crate::memory_error::MemoryError;
use crate::peers::PeerId;
use crate::switch_limits::PORTS;

/// Bytes of a link's meters: one for each direction.
pub(crate) const METERS: u64 = 16;
/// Limit of the size of a peer's file that holds them.
pub(crate) const LONGEST_METERS: u64 = 4096;

/// Limit of the time that a slice waits for others, in nanoseconds, regardless of the meter.
const LONGEST_QUEUE: u64 = 1_000_000_000;

/// Duration of a slice, in nanoseconds, unless the slice would be smaller than [`SMALLEST_SLICE`].
const SLICE: u64 = 100_000;

/// Minimum size of a slice in bytes.
const SMALLEST_SLICE: u64 = 4096;

/// Lead of a reservation over the end of the previous slice, in nanoseconds: a thread may wake up
/// this late without leaving the link idle.
const AHEAD: u64 = 100_000;

const NANOSECONDS: u64 = 1_000_000_000;

/// The rate of a link. With `None`, transfers take no time.
#[derive(Clone, Copy, Debug)]
struct Rate(Option<Bandwidth>);

impl Rate {
    /// Returns the duration of `bytes`, in nanoseconds.
    fn time(self, bytes: u64) -> u64 {
        self.0.map_or(0, |bandwidth| {
            let time = u128::from(bytes) * u128::from(NANOSECONDS);
            let time = time.div_ceil(u128::from(bandwidth.bytes_per_second().get()));
            u64::try_from(time).unwrap_or(u64::MAX)
        })
    }

    /// Returns the number of bytes to reserve at once.
    fn slice(self) -> u64 {
        self.0.map_or(u64::MAX, |bandwidth| {
            let slice = u128::from(bandwidth.bytes_per_second().get()) * u128::from(SLICE)
                / u128::from(NANOSECONDS);
            u64::try_from(slice).unwrap_or(u64::MAX).max(SMALLEST_SLICE)
        })
    }
}

/// The direction of data on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDirection {
    /// From the function to its port.
    Up,
    /// From the port to the function.
    Down,
}

impl LinkDirection {
    fn meter(self) -> u64 {
        match self {
            Self::Up => 0,
            Self::Down => 8,
        }
    }
}

/// A link, and its meters.
#[derive(Debug)]
pub struct Link {
    speed: LinkSpeed,
    meters: Span,
}

impl Link {
    /// Makes a link with its own meters.
    pub fn new(speed: LinkSpeed) -> Result<Self, MemoryError> {
        let file = Arc::new(MemoryFile::create("link", METERS)?);
        Ok(Self::with_meters(speed, Span { file, offset: 0 }))
    }

    /// Makes a link whose meters another process has made.
    pub(crate) fn with_meters(speed: LinkSpeed, meters: Span) -> Self {
        Self { speed, meters }
    }

    /// Returns the link's latency and bandwidth.
    pub fn speed(&self) -> LinkSpeed {
        self.speed
    }

    /// Returns the meters' file, to be lent to peers.
    pub fn meters(&self) -> BorrowedFd<'_> {
        self.meters.file.file().as_fd()
    }

    fn rate(&self) -> Rate {
        Rate(self.speed.bandwidth)
    }

    /// Reserves time for `bytes`. Returns the time at which they will be through.
    fn reserve(&self, toward: LinkDirection, bytes: u64, now: u64) -> u64 {
        let time = self.rate().time(bytes);
        if time == 0 {
            return now;
        }
        let latest = now.saturating_add(LONGEST_QUEUE);
        let through = |busy: u64| busy.clamp(now, latest).saturating_add(time);
        let meter = self.meters.offset.saturating_add(toward.meter());
        self.meters
            .file
            .update(meter, through)
            .unwrap_or_else(|_| through(0))
    }
}

/// A link that a transfer takes, and the direction of its data on that link.
#[derive(Clone, Debug)]
pub(crate) struct LinkUse {
    pub(crate) link: Arc<Link>,
    pub(crate) toward: LinkDirection,
}

impl LinkUse {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link) && self.toward == other.toward
    }
}

/// The links of a transfer: the requester's, and that of the peer at the other end.
pub(crate) type LinkPath = [Option<LinkUse>; 2];

/// The links that take time: the function's own and its peers'.
#[derive(Debug, Default)]
pub(crate) struct Links {
    own: Option<Arc<Link>>,
    peers: BTreeMap<PeerId, Arc<Link>>,
}

impl Links {
    pub(crate) fn own(&self) -> Option<&Arc<Link>> {
        self.own.as_ref()
    }

    pub(crate) fn set_own(&mut self, link: Link) {
        self.own = Some(Arc::new(link));
    }

    /// Sets the link of a peer. If there are more links than a switch has ports, the link of a peer
    /// that is no longer there is dropped: an endpoint gets another number whenever it attaches.
    pub(crate) fn set_peer(&mut self, peer: PeerId, link: Link, is_there: impl Fn(PeerId) -> bool) {
        self.peers.insert(peer, Arc::new(link));
        if self.peers.len() > PORTS {
            let mut others = self.peers.keys().copied().filter(|other| *other != peer);
            let gone = others.find(|other| !is_there(*other)).unwrap_or(peer);
            self.peers.remove(&gone);
        }
    }

    /// Forgets the links of all peers.
    pub(crate) fn forget_peers(&mut self) {
        self.peers.clear();
    }

    /// Returns the links that data takes to or from a peer, or to or from anything above the
    /// switch. Returns `None` if transfers take no time on any of them.
    pub(crate) fn path(&self, peer: Option<PeerId>, direction: Direction) -> Option<LinkPath> {
        let peer = peer.and_then(|peer| self.peers.get(&peer));
        if self.own.is_none() && peer.is_none() {
            return None;
        }
        let (own_direction, peer_direction) = match direction {
            Direction::Write => (LinkDirection::Up, LinkDirection::Down),
            Direction::Read => (LinkDirection::Down, LinkDirection::Up),
        };
        let link_use = |link: Option<&Arc<Link>>, toward| {
            let link = link?.clone();
            Some(LinkUse { link, toward })
        };
        Some([
            link_use(self.own.as_ref(), own_direction),
            link_use(peer, peer_direction),
        ])
    }
}

/// A transfer that takes time on links.
#[derive(Debug)]
pub(crate) struct Transit {
    path: LinkPath,
    /// Bytes without a reservation.
    left: u64,
    /// The time at which all reserved bytes will be through.
    through: u64,
}

impl Transit {
    /// Starts a transfer of `bytes` at the time `now`.
    pub(crate) fn new(path: LinkPath, bytes: u64, now: u64) -> Self {
        Self {
            path,
            left: bytes,
            through: now,
        }
    }

    /// Returns the nanoseconds that the rest would take on otherwise idle links.
    pub(crate) fn time_alone(&self) -> u64 {
        let links = self.path.iter().flatten().map(|link_use| &link_use.link);
        let slowest = links.map(|link| link.rate().time(self.left)).max();
        slowest.unwrap_or(0).saturating_add(self.latency())
    }

    fn latency(&self) -> u64 {
        let links = self.path.iter().flatten().map(|link_use| &link_use.link);
        let latencies = links.map(|link| link.speed.latency.nanoseconds());
        latencies.fold(0, u64::saturating_add)
    }

    /// Adds bytes if the transfer already takes these links. Returns `true` if it does.
    pub(crate) fn join(&mut self, path: &LinkPath, bytes: u64) -> bool {
        let same = |pair: (&Option<LinkUse>, &Option<LinkUse>)| match pair {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let joins = self.path.iter().zip(path).all(same);
        if joins {
            self.left = self.left.saturating_add(bytes);
        }
        joins
    }

    /// Returns the nanoseconds to wait before the next call, or `None` once the transfer has
    /// arrived.
    pub(crate) fn next(&mut self, now: u64) -> Option<u64> {
        while self.left > 0 {
            let early = self.through.saturating_sub(now.saturating_add(AHEAD));
            if early > 0 {
                return Some(early);
            }
            self.reserve(now);
        }
        let arrival = self.through.saturating_add(self.latency());
        arrival.checked_sub(now).filter(|left| *left > 0)
    }

    fn reserve(&mut self, now: u64) {
        let path = || self.path.iter().flatten();
        let slices = path().map(|link_use| link_use.link.rate().slice());
        let bytes = slices.fold(self.left, u64::min);
        let through = path().map(|link_use| link_use.link.reserve(link_use.toward, bytes, now));
        self.through = through.fold(self.through, u64::max);
        self.left -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link_speed::Latency;

    const MIB: u64 = 1 << 20;

    fn link(latency: u64, bandwidth: u64) -> Arc<Link> {
        let speed = LinkSpeed {
            latency: Latency::of_nanoseconds(latency),
            bandwidth: Bandwidth::of_bytes_per_second(bandwidth),
        };
        Arc::new(Link::new(speed).unwrap())
    }

    #[test]
    fn links_of_peers_that_left_go_first() {
        let mut links = Links::default();
        let speed = LinkSpeed {
            latency: Latency::of_nanoseconds(1),
            bandwidth: Bandwidth::of_bytes_per_second(MIB),
        };
        // Peers that attach again and again, and one that was there before them.
        for number in 1..1000 {
            let is_there = |peer| [PeerId(1), PeerId(number)].contains(&peer);
            links.set_peer(PeerId(number), Link::new(speed).unwrap(), is_there);
            let path = |peer| links.path(Some(PeerId(peer)), Direction::Read);
            assert!(path(1).is_some() && path(number).is_some());
            assert!(links.peers.len() <= PORTS);
        }
        links.forget_peers();
        assert!(links.path(Some(PeerId(1)), Direction::Read).is_none());
    }

    fn up(link: &Arc<Link>) -> Option<LinkUse> {
        let (link, toward) = (link.clone(), LinkDirection::Up);
        Some(LinkUse { link, toward })
    }

    /// Returns the arrival times of several transfers that start at once, if every thread wakes up
    /// this late.
    fn arrivals(transfers: Vec<(LinkPath, u64)>, late: u64) -> Vec<u64> {
        let mut transits: Vec<(Transit, u64, Option<u64>)> = transfers
            .into_iter()
            .map(|(path, bytes)| (Transit::new(path, bytes, 0), 0, None))
            .collect();
        while let Some((transit, wake, arrived)) = transits
            .iter_mut()
            .filter(|(_, _, arrived)| arrived.is_none())
            .min_by_key(|(_, wake, _)| *wake)
        {
            match transit.next(*wake) {
                Some(wait) => *wake += wait + late,
                None => *arrived = Some(*wake),
            }
        }
        transits.into_iter().filter_map(|(.., at)| at).collect()
    }

    #[test]
    fn transfer_takes_latency_plus_bytes_by_bandwidth() {
        let alone = |latency, bandwidth, bytes| {
            arrivals(vec![([up(&link(latency, bandwidth)), None], bytes)], 0)
        };
        assert_eq!(alone(2000, 0, MIB), [2000]);
        assert_eq!(alone(0, MIB, 4096), [3_906_250]);
        assert_eq!(alone(2000, NANOSECONDS, 1_000_000), [1_000_000 + 2000]);
        assert_eq!(alone(7, MIB, 0), [7]);
    }

    #[test]
    fn a_thread_that_wakes_up_late_leaves_no_gap_on_the_link() {
        let link = link(0, MIB << 12);
        let at = arrivals(vec![([up(&link), None], 64 * MIB)], AHEAD)[0];
        let ideal = NANOSECONDS / 64;
        assert!((ideal..=ideal + AHEAD + 1000).contains(&at), "{at}");
    }

    #[test]
    fn concurrent_transfers_share_one_direction_of_a_link_equally() {
        let shared = link(0, MIB << 8);
        let down = Some(LinkUse {
            link: shared.clone(),
            toward: LinkDirection::Down,
        });
        let transfers = vec![
            ([up(&shared), None], 16 * MIB),
            ([up(&shared), None], 16 * MIB),
            ([up(&shared), None], 4 * MIB),
            ([down, None], 16 * MIB),
        ];
        let at = arrivals(transfers, 0);
        let close = |at: u64, mib: u64| {
            let ideal = mib * NANOSECONDS / 256;
            at.abs_diff(ideal) < 4 * SLICE
        };
        assert!(close(at[0], 36) && close(at[1], 36), "{at:?}");
        assert!(close(at[2], 12), "a third each until it is through: {at:?}");
        assert!(close(at[3], 16), "{at:?}");
    }

    #[test]
    fn slower_of_two_links_sets_the_rate_and_latencies_add_up() {
        let (own, peer) = (link(1000, MIB << 8), link(500, MIB << 7));
        let at = arrivals(vec![([up(&own), up(&peer)], MIB)], 0)[0];
        let ideal = NANOSECONDS / 128 + 1500;
        assert!((ideal..ideal + 100).contains(&at), "{at}");
    }

    #[test]
    fn two_requesters_share_the_link_of_their_peer() {
        let peer = link(0, MIB << 8);
        let lent = Arc::new(Link::with_meters(peer.speed, peer.meters.clone()));
        let transfers = vec![
            ([None, up(&peer)], 8 * MIB),
            ([up(&link(0, MIB << 10)), up(&lent)], 8 * MIB),
        ];
        let at = arrivals(transfers, 0);
        let ideal = 16 * NANOSECONDS / 256;
        assert!(at.iter().all(|at| at.abs_diff(ideal) < 4 * SLICE), "{at:?}");
    }

    #[test]
    fn nonsense_on_a_meter_delays_a_slice_by_a_second_at_most() {
        let link = link(0, MIB);
        link.meters.file.update(0, |_| u64::MAX).unwrap();
        let at = arrivals(vec![([up(&link), None], 4096)], 0)[0];
        assert_eq!(at, LONGEST_QUEUE + 3_906_250);
    }
}
