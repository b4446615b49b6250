//! The peers below the same switch: the content of their windows, and the switch's treatment of
//! requests to them.

use std::collections::BTreeMap;

use peerbar_pci::{BusAddress, Range};
use thiserror::Error;

use crate::buffer::Buffer;
use crate::memory::Span;

/// Number of a peer at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl PeerId {
    /// The owner of the windows of lost peers. It is not a peer.
    pub const NONE: Self = Self(0);
}

/// A range of bus addresses that a peer answers.
#[derive(Clone, Debug)]
pub struct PeerWindow {
    /// Its bus addresses.
    pub range: Range<BusAddress>,
    /// If several windows cover one address, the one with the smallest claim answers.
    pub claim: u64,
    /// The content of the window.
    pub memory: PeerMemory,
}

/// The content of a peer's window.
#[derive(Clone, Debug)]
pub enum PeerMemory {
    /// Memory that is mapped here, from the start of the span on.
    Span(Span),
    /// Registers, or memory that cannot be mapped here, which are reached by messages ([`Peers`]).
    ByMessage,
    /// Nothing: the peer has vanished, and requests to it fail.
    Gone,
}

impl PeerMemory {
    /// Returns `true` if it is the same memory under the same lease, so that requests in progress
    /// may continue.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Span(one), Self::Span(other)) => {
                one.offset == other.offset && one.file.is_leased_as(&other.file)
            }
            (Self::ByMessage, Self::ByMessage) | (Self::Gone, Self::Gone) => true,
            _ => false,
        }
    }
}

/// The fate of this function's requests to peers, as configured in the port above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerRouting {
    /// They go to the peer.
    #[default]
    Route,
    /// They go up like any other request (PCIe Base 6.0, 6.12.1.1, ACS P2P Request Redirect).
    Redirect,
    /// They are refused, and this function is notified (PCIe Base 6.0, 2.3.1, Unsupported Request).
    UnsupportedRequest,
    /// They vanish. A write is posted, so it succeeds for this function. A read ends with a
    /// completion time-out (PCIe Base 6.0, 2.8), without waiting for it here.
    Drop,
}

/// The way to peers' windows that are not memory mapped here.
///
/// A call blocks until the peer has answered, so the thread that answers region accesses must never
/// make one.
pub trait Peers: Send + Sync {
    /// Reads or writes at `address` of `peer`.
    fn access(&self, peer: PeerId, address: BusAddress, data: Buffer<'_>) -> Result<(), PeerError>;
    /// Leaves the switch, if there is one, because it does not say what has changed.
    fn give_up(&self) {}
}

/// The reason why a request to a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The peer does not answer there, or the switch does not let the request through.
    #[error("unsupported request")]
    Unsupported,
    /// The peer has vanished.
    #[error("the peer is gone")]
    Gone,
    /// No answer came in time.
    #[error("completion time-out")]
    TimedOut,
}

/// A part of a window that no earlier claim covers.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) range: Range<BusAddress>,
    /// The first address of the window itself.
    window: BusAddress,
    pub(crate) peer: PeerId,
    pub(crate) memory: PeerMemory,
}

/// The owner of an address.
#[derive(Debug)]
pub(crate) enum FoundPeer<'a> {
    /// A part of a peer's window, and the offset of the address in the window.
    Claimed { claimed: &'a Claimed, skip: u64 },
    /// No peer. The next one starts after this many bytes, if there is one.
    Gap { left: Option<u64> },
}

impl Claimed {
    /// Returns `true` if both have the same addresses of the same window with the same memory.
    fn is_same(&self, other: &Self) -> bool {
        (self.range, self.window) == (other.range, other.window)
            && self.memory.is_same(&other.memory)
    }
}

/// The windows of all peers. A lookup takes O(log n). A change takes O(n^2) for the windows of all
/// peers, which are few.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    windows: BTreeMap<PeerId, Vec<PeerWindow>>,
    claimed: BTreeMap<BusAddress, Claimed>,
}

impl PeerTable {
    /// Replaces all windows of a peer. Returns the addresses that get another owner or other memory
    /// by this. A window that stays keeps the mapping of its memory.
    pub(crate) fn set(
        &mut self,
        peer: PeerId,
        mut windows: Vec<PeerWindow>,
    ) -> Vec<Range<BusAddress>> {
        let former = self.windows.get(&peer).into_iter().flatten();
        for old in former {
            let stays =
                |new: &&mut PeerWindow| new.range == old.range && new.memory.is_same(&old.memory);
            if let Some(new) = windows.iter_mut().find(stays) {
                new.memory = old.memory.clone();
            }
        }
        let before = self.claims_of(peer);
        self.windows.insert(peer, windows);
        self.windows.retain(|_, windows| !windows.is_empty());
        self.claim();
        let after = self.claims_of(peer);
        let without = |these: &[Claimed], those: &[Claimed]| {
            let differs = |one: &&Claimed| !those.iter().any(|other| one.is_same(other));
            let changed = these.iter().filter(differs);
            changed.map(|claimed| claimed.range).collect::<Vec<_>>()
        };
        [without(&before, &after), without(&after, &before)].concat()
    }

    /// Returns the parts of a peer's windows that no earlier claim covers.
    fn claims_of(&self, peer: PeerId) -> Vec<Claimed> {
        let claims = self.claimed.values();
        claims
            .filter(|claimed| claimed.peer == peer)
            .cloned()
            .collect()
    }

    /// Marks every peer as gone. Their windows stay claimed, without an owner. Any other claim
    /// takes precedence.
    pub(crate) fn lose_all(&mut self) {
        let windows = std::mem::take(&mut self.windows).into_values().flatten();
        let lost = windows.map(|window| PeerWindow {
            claim: u64::MAX,
            memory: PeerMemory::Gone,
            ..window
        });
        let mut lost: Vec<PeerWindow> = lost.collect();
        lost.sort_by_key(|window| window.range);
        lost.dedup_by_key(|window| window.range);
        // The returned addresses need no attention: all of the windows are taken away.
        let _ = self.set(PeerId::NONE, lost);
    }

    /// Returns `true` if a peer has a window that it answers.
    pub(crate) fn is_there(&self, peer: PeerId) -> bool {
        let mut windows = self.windows.get(&peer).into_iter().flatten();
        windows.any(|window| !matches!(window.memory, PeerMemory::Gone))
    }

    /// Returns the windows of each peer.
    pub(crate) fn windows(&self) -> impl Iterator<Item = (&PeerId, &Vec<PeerWindow>)> {
        self.windows.iter()
    }

    /// Returns the addresses of each window of the peers that `is_chosen` picks.
    pub(crate) fn addresses(
        &self,
        is_chosen: impl Fn(PeerId) -> bool,
    ) -> impl Iterator<Item = Range<BusAddress>> {
        let windows = self
            .windows
            .iter()
            .filter(move |(peer, _)| is_chosen(**peer));
        windows
            .flat_map(|(_, windows)| windows)
            .map(|window| window.range)
    }

    /// Returns the owner of `address`.
    pub(crate) fn find(&self, address: BusAddress) -> FoundPeer<'_> {
        let before = self.claimed.range(..=address).next_back();
        let holds = |claimed: &&Claimed| claimed.range.contains(address);
        let found = before.map(|(_, claimed)| claimed).filter(holds);
        let found = found.and_then(|it| Some((it, address.offset_from(it.window)?)));
        if let Some((claimed, skip)) = found {
            return FoundPeer::Claimed { claimed, skip };
        }
        let next = self.claimed.range(address..).next();
        FoundPeer::Gap {
            left: next.and_then(|(first, _)| first.offset_from(address)),
        }
    }

    /// Returns the last address up to `address` at which a claim or a gap starts.
    pub(crate) fn boundary(&self, address: BusAddress) -> BusAddress {
        match self.claimed.range(..=address).next_back() {
            Some((first, claimed)) if claimed.range.contains(address) => *first,
            Some((_, claimed)) => claimed.range.last().saturating_add(1),
            None => BusAddress(0),
        }
    }

    /// Gives each address to the oldest claim on it.
    fn claim(&mut self) {
        self.claimed.clear();
        let mut windows: Vec<(PeerId, PeerWindow)> = self
            .windows
            .iter()
            .flat_map(|(peer, windows)| windows.iter().map(|window| (*peer, window.clone())))
            .collect();
        windows.sort_by_key(|(_, window)| window.claim);
        for (peer, window) in windows {
            self.claim_rest(peer, &window);
        }
    }

    /// Gives a window those of its addresses that are unclaimed.
    fn claim_rest(&mut self, peer: PeerId, window: &PeerWindow) {
        let mut rest = Some(window.range);
        while let Some(range) = rest {
            let part = match self.find(range.first()) {
                FoundPeer::Claimed { claimed, .. } => {
                    let (at, first) = (range.first(), claimed.peer.0);
                    log::debug!("{at}: the window of peer {first} comes first");
                    rest = range.after(claimed.range.last());
                    continue;
                }
                FoundPeer::Gap { left } => {
                    let next = left.and_then(|left| range.first().checked_add(left));
                    next.and_then(|next| range.before(next))
                }
            };
            let part = part.unwrap_or(range);
            let claimed = Claimed {
                range: part,
                window: window.range.first(),
                peer,
                memory: window.memory.clone(),
            };
            self.claimed.insert(part.first(), claimed);
            rest = range.after(part.last());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(address: u64, size: u64, claim: u64) -> PeerWindow {
        PeerWindow {
            range: Range::new(BusAddress(address), size).unwrap(),
            claim,
            memory: PeerMemory::ByMessage,
        }
    }

    fn owner(table: &PeerTable, address: u64) -> Option<u32> {
        match table.find(BusAddress(address)) {
            FoundPeer::Claimed { claimed, .. } => Some(claimed.peer.0),
            FoundPeer::Gap { .. } => None,
        }
    }

    #[test]
    fn the_first_claim_answers_until_it_is_given_up() {
        let mut table = PeerTable::default();
        table.set(PeerId(1), vec![window(0x2000, 0x1000, 2)]);
        table.set(PeerId(2), vec![window(0x1000, 0x3000, 1)]);
        assert_eq!(owner(&table, 0x2000), Some(2));
        table.set(PeerId(2), vec![window(0x1000, 0x3000, 3)]);
        assert_eq!(
            [0x1fff, 0x2000, 0x2fff, 0x3000].map(|at| owner(&table, at)),
            [2, 1, 1, 2].map(Some)
        );
        let FoundPeer::Claimed { claimed, skip } = table.find(BusAddress(0x3800)) else {
            panic!("unclaimed")
        };
        assert_eq!(
            (skip, claimed.range.clip(BusAddress(0x3800), usize::MAX)),
            (0x2800, 0x800),
            "counted from the start of the window"
        );
        table.set(PeerId(1), Vec::new());
        assert_eq!(owner(&table, 0x2800), Some(2));
    }

    #[test]
    fn windows_of_the_vanished_stay_claimed_but_come_last() {
        let mut table = PeerTable::default();
        table.set(
            PeerId(1),
            vec![PeerWindow {
                memory: PeerMemory::Gone,
                ..window(0x1000, 0x2000, u64::MAX)
            }],
        );
        table.set(PeerId(2), vec![window(0x2000, 0x1000, 7)]);
        assert_eq!(
            (owner(&table, 0x1000), owner(&table, 0x2000)),
            (Some(1), Some(2))
        );
        table.lose_all();
        table.lose_all();
        let FoundPeer::Claimed { claimed, .. } = table.find(BusAddress(0x2000)) else {
            panic!("unclaimed")
        };
        assert!(matches!(claimed.memory, PeerMemory::Gone));
        table.set(PeerId(2), vec![window(0x2000, 0x1000, 7)]);
        assert_eq!(owner(&table, 0x2000), Some(2), "it is back");
        table.set(PeerId::NONE, Vec::new());
        assert_eq!((owner(&table, 0x1000), table.windows.len()), (None, 1));
    }

    #[test]
    fn windows_may_end_with_the_address_space() {
        let mut table = PeerTable::default();
        table.set(PeerId(1), vec![window(u64::MAX, 1, 3)]);
        assert_eq!(owner(&table, 0x1000), None);
        assert_eq!(owner(&table, u64::MAX), Some(1));
        table.set(PeerId(2), vec![window(0, u64::MAX, 4)]);
        assert_eq!(
            (owner(&table, 0), owner(&table, u64::MAX)),
            (Some(2), Some(1))
        );
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_claims(
            steps in prop::collection::vec((0u32..4, prop::collection::vec((0u64..40, 1u64..20), 0..3)), 1..12),
        ) {
            let mut table = PeerTable::default();
            let mut model: Vec<(u32, u64, u64, u64)> = Vec::new();
            let mut claim = 0;
            for (peer, windows) in steps {
                model.retain(|(owner, ..)| *owner != peer);
                let mut list = Vec::new();
                for (address, size) in windows {
                    claim += 1;
                    model.push((peer, address, size, claim));
                    list.push(window(address, size, claim));
                }
                table.set(PeerId(peer), list);
                for at in 0..64 {
                    let claims = model.iter().filter(|(_, address, size, _)| (*address..address + size).contains(&at));
                    let first = claims.min_by_key(|(.., claim)| *claim).map(|(peer, ..)| *peer);
                    prop_assert_eq!(owner(&table, at), first);
                }
            }
        }
    }
}
