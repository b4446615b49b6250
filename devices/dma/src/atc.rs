//! The address translation cache (ATC) of a function (PCIe Base 6.0, 10.1): translations of untranslated addresses.
//!
//! Translations come from the memory map, which reflects the guest's IOMMU. A translation exists
//! for memory that the client has lent, and for a mapping over a device whose IOVA equals the bus
//! address of a window that a peer has announced: the IOMMU passes such addresses unchanged, since
//! Linux allocates no IOVA that is a device's bus address. The client does not say which device is
//! behind any other mapping, so a translation of such an address is refused, and the request goes
//! up untranslated.

use std::collections::{BTreeMap, VecDeque};

use peerbar_dma_log::{AtsCounts, Direction};

use crate::map::{Backing, Found, MemoryMap};
use crate::map_access::MapAccess;
use crate::memory::Span;
use crate::peers::{FoundPeer, PeerTable};

/// Limit of the translations in the cache.
const ENTRIES: usize = 256;

/// Sizes of a translation: the pages of x86's IOMMUs. Each is a power of two.
const GRANULES: [u64; 3] = [1 << 30, 2 << 20, 4 << 10];

/// The result of a translation.
#[derive(Clone, Debug)]
pub(crate) enum Translated {
    /// Guest RAM.
    Ram(Span),
    /// A peer's window, at this bus address.
    Bus(u64),
}

impl Translated {
    fn after(&self, skip: u64) -> Self {
        match self {
            Self::Ram(span) => Self::Ram(Span {
                file: span.file.clone(),
                offset: span.offset.saturating_add(skip),
            }),
            Self::Bus(address) => Self::Bus(address.saturating_add(skip)),
        }
    }
}

/// A translation of consecutive addresses.
#[derive(Clone, Debug)]
struct Translation {
    last: u64,
    access: MapAccess,
    to: Translated,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Atc {
    translations: BTreeMap<u64, Translation>,
    /// Their first addresses, oldest first.
    ages: VecDeque<u64>,
    counts: AtsCounts,
}

impl Atc {
    /// Translates `address` by the cache or the memory map. Also returns the number of bytes from
    /// there that the translation covers. Returns `None` if there is no translation for this
    /// direction.
    pub(crate) fn translate(
        &mut self,
        address: u64,
        direction: Direction,
        map: &MemoryMap,
        peers: &PeerTable,
    ) -> Option<(Translated, u64)> {
        if let Some((first, translation)) = self.cached(address, direction) {
            let found = part(address, first, translation);
            self.counts.hits += 1;
            return Some(found);
        }
        self.counts.asked += 1;
        let Some((first, translation)) = asked(address, direction, map, peers) else {
            self.counts.refused += 1;
            return None;
        };
        let found = part(address, first, &translation);
        self.insert(first, translation);
        Some(found)
    }

    /// Removes every translation that overlaps the addresses from `first` to `last`. Returns `true`
    /// if there was any.
    pub(crate) fn invalidate(&mut self, first: u64, last: u64) -> bool {
        let before = self.translations.len();
        self.remove(first, last);
        let gone = before.saturating_sub(self.translations.len());
        self.counts.invalidated += gone as u64;
        gone > 0
    }

    /// Empties the cache.
    pub(crate) fn clear(&mut self) {
        self.translations.clear();
        self.ages.clear();
    }

    /// Returns the cache's counts. The caller knows if the cache is enabled.
    pub(crate) fn counts(&self, enabled: bool) -> AtsCounts {
        AtsCounts {
            enabled,
            cached: self.translations.len() as u64,
            ..self.counts
        }
    }

    fn cached(&self, address: u64, direction: Direction) -> Option<(u64, &Translation)> {
        let (first, translation) = self.translations.range(..=address).next_back()?;
        let holds = translation.last >= address && translation.access.allows(direction);
        holds.then_some((*first, translation))
    }

    fn insert(&mut self, first: u64, translation: Translation) {
        // Replaces one that does not allow enough.
        self.remove(first, translation.last);
        if self.ages.len() >= ENTRIES {
            if let Some(oldest) = self.ages.pop_front() {
                self.translations.remove(&oldest);
                self.counts.evicted += 1;
            }
        }
        self.translations.insert(first, translation);
        self.ages.push_back(first);
    }

    fn remove(&mut self, first: u64, last: u64) {
        let met = |(start, translation): (&u64, &Translation)| {
            (translation.last >= first).then_some(*start)
        };
        // Translations are disjoint, so those that overlap the range are the last ones that start
        // before its end.
        let starts = self.translations.range(..=last).rev();
        let starts: Vec<u64> = starts.map_while(met).collect();
        for start in &starts {
            self.translations.remove(start);
        }
        if !starts.is_empty() {
            self.ages.retain(|age| !starts.contains(age));
        }
    }
}

/// Returns the part of a translation from `address` on, and its length.
fn part(address: u64, first: u64, translation: &Translation) -> (Translated, u64) {
    let left = (translation.last - address).saturating_add(1);
    (translation.to.after(address - first), left)
}

/// Answers a translation request with the largest page around `address` that one mapping holds.
fn asked(
    address: u64,
    direction: Direction,
    map: &MemoryMap,
    peers: &PeerTable,
) -> Option<(u64, Translation)> {
    let Found::Mapped {
        mapping,
        skip,
        left,
    } = map.find(address)
    else {
        return None;
    };
    let start = address - skip;
    let end = address.checked_add(left.wrapping_sub(1))?;
    let (first, last) = GRANULES.into_iter().find_map(|granule| {
        let (first, last) = (address & !(granule - 1), address | (granule - 1));
        (first >= start && last <= end).then_some((first, last))
    })?;
    let to = match &mapping.backing {
        Backing::Ram(span) => Translated::Ram(Span {
            file: span.file.clone(),
            offset: span.offset.checked_add(first - start)?,
        }),
        Backing::Device if is_window(peers, first, last) => Translated::Bus(first),
        Backing::Device | Backing::RemoteRam => return None,
    };
    let translation = Translation {
        last,
        access: mapping.access,
        to,
    };
    translation
        .access
        .allows(direction)
        .then_some((first, translation))
}

/// Returns `true` if all of these addresses are in one peer's window.
fn is_window(peers: &PeerTable, first: u64, last: u64) -> bool {
    match peers.find(first) {
        FoundPeer::Claimed { left, .. } => left.wrapping_sub(1) >= last - first,
        FoundPeer::Gap { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryFile;
    use crate::peers::{PeerId, PeerMemory, PeerWindow};

    const PAGE: u64 = 0x1000;
    const BOTH: MapAccess = MapAccess::READ_WRITE;

    fn ram(size: u64) -> Backing {
        Backing::Ram(Span {
            file: Arc::new(MemoryFile::create("test", size).unwrap()),
            offset: 0,
        })
    }

    /// 2 MiB and one page of RAM from 2 MiB on, a read-only page at 16 MiB, a mapped peer's window
    /// of two pages at 32 MiB, and a mapping over an unknown device at 48 MiB.
    fn world() -> (MemoryMap, PeerTable) {
        let mut map = MemoryMap::default();
        map.map(2 << 20, (2 << 20) + PAGE, BOTH, ram(4 << 20))
            .unwrap();
        map.map(16 << 20, PAGE, MapAccess::READ_ONLY, ram(PAGE))
            .unwrap();
        map.map(32 << 20, 2 * PAGE, BOTH, Backing::Device).unwrap();
        map.map(48 << 20, 2 * PAGE, BOTH, Backing::Device).unwrap();
        let mut peers = PeerTable::default();
        let window = PeerWindow {
            address: 32 << 20,
            size: 2 * PAGE,
            claim: 1,
            memory: PeerMemory::ByMessage,
        };
        peers.set(PeerId(1), vec![window]);
        (map, peers)
    }

    fn translate(atc: &mut Atc, address: u64, direction: Direction) -> Option<(u64, u64)> {
        let (map, peers) = world();
        let found = atc.translate(address, direction, &map, &peers)?;
        match found {
            (Translated::Ram(span), left) => Some((span.offset, left)),
            (Translated::Bus(address), left) => Some((address, left)),
        }
    }

    #[test]
    fn a_translation_is_the_largest_page_that_one_mapping_holds() {
        let mut atc = Atc::default();
        let write = |atc: &mut Atc, address| translate(atc, address, Direction::Write);
        assert_eq!(write(&mut atc, 0x20_1234), Some((0x1234, 0x1f_edcc)));
        assert_eq!(write(&mut atc, 0x40_0010), Some((0x20_0010, 0xff0)));
        assert_eq!(write(&mut atc, 0x200_1008), Some((0x200_1008, 0xff8)));
        assert_eq!(write(&mut atc, 0x300_0000), None, "an unknown owner");
        assert_eq!(write(&mut atc, 0x500_0000), None, "not mapped");
        let counts = atc.counts(true);
        assert_eq!((counts.asked, counts.refused, counts.cached), (5, 2, 3));
        assert_eq!(write(&mut atc, 0x3f_ffff), Some((0x1f_ffff, 1)));
        assert_eq!((atc.counts(true).hits, atc.counts(true).asked), (1, 5));
    }

    #[test]
    fn forbidden_direction_is_refused_each_time() {
        let mut atc = Atc::default();
        let read_only = 16 << 20;
        assert_eq!(translate(&mut atc, read_only, Direction::Write), None);
        assert!(translate(&mut atc, read_only, Direction::Read).is_some());
        assert_eq!(translate(&mut atc, read_only, Direction::Write), None);
        assert!(translate(&mut atc, read_only, Direction::Read).is_some());
        let counts = atc.counts(true);
        assert_eq!((counts.asked, counts.refused, counts.hits), (3, 2, 1));
    }

    #[test]
    fn an_invalidation_takes_all_that_it_meets_and_nothing_else() {
        let mut atc = Atc::default();
        for address in [2 << 20, 4 << 20, 32 << 20, (32 << 20) + PAGE] {
            translate(&mut atc, address, Direction::Read).unwrap();
        }
        atc.invalidate((4 << 20) + 5, (32 << 20) + 1);
        assert_eq!(atc.counts(true).invalidated, 2);
        let left: Vec<u64> = atc.translations.keys().copied().collect();
        assert_eq!(left, [2 << 20, (32 << 20) + PAGE]);
        assert_eq!(atc.ages, [2 << 20, (32 << 20) + PAGE]);
        atc.invalidate(0, u64::MAX);
        assert_eq!((atc.counts(true).invalidated, atc.ages.len()), (4, 0));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut map = MemoryMap::default();
        let pages = ENTRIES as u64 + 2;
        for page in 0..pages {
            map.map(page * 2 * PAGE, PAGE, BOTH, ram(PAGE)).unwrap();
        }
        let peers = PeerTable::default();
        let mut atc = Atc::default();
        for page in 0..pages {
            let found = atc.translate(page * 2 * PAGE, Direction::Read, &map, &peers);
            assert!(found.is_some());
        }
        let counts = atc.counts(true);
        assert_eq!((counts.cached, counts.evicted), (ENTRIES as u64, 2));
        assert_eq!(atc.translations.keys().next(), Some(&(4 * PAGE)));
    }

    #[test]
    fn the_whole_address_space_can_be_one_mapping() {
        let mut map = MemoryMap::default();
        map.map(1 << 63, 1 << 63, BOTH, ram(PAGE)).unwrap();
        let peers = PeerTable::default();
        let found = Atc::default().translate(u64::MAX, Direction::Read, &map, &peers);
        let (_, left) = found.unwrap();
        assert_eq!(left, 1);
    }
}
