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
use peerbar_pci::{BusAddress, Iova, Range};

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
    Bus(BusAddress),
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
    range: Range<Iova>,
    access: MapAccess,
    to: Translated,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Atc {
    translations: BTreeMap<Iova, Translation>,
    /// Their first addresses, oldest first.
    ages: VecDeque<Iova>,
    counts: AtsCounts,
}

impl Atc {
    /// Translates `address` by the cache or the memory map. Also returns the addresses that the
    /// translation covers. Returns `None` if there is no translation for this direction.
    pub(crate) fn translate(
        &mut self,
        address: Iova,
        direction: Direction,
        map: &MemoryMap,
        peers: &PeerTable,
    ) -> Option<(Translated, Range<Iova>)> {
        if let Some(found) = self.cached(address, direction) {
            let found = found.at(address)?;
            self.counts.hits += 1;
            return Some(found);
        }
        self.counts.asked += 1;
        let Some(translation) = asked(address, direction, map, peers) else {
            self.counts.refused += 1;
            return None;
        };
        let found = translation.at(address)?;
        self.insert(translation);
        Some(found)
    }

    /// Removes every translation that overlaps this range. Returns `true` if there was any.
    pub(crate) fn invalidate(&mut self, range: Range<Iova>) -> bool {
        let before = self.translations.len();
        self.remove(range);
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

    fn cached(&self, address: Iova, direction: Direction) -> Option<&Translation> {
        let (_, translation) = self.translations.range(..=address).next_back()?;
        let holds = translation.range.contains(address) && translation.access.allows(direction);
        holds.then_some(translation)
    }

    fn insert(&mut self, translation: Translation) {
        // Replaces one that does not allow enough.
        self.remove(translation.range);
        if self.ages.len() >= ENTRIES {
            if let Some(oldest) = self.ages.pop_front() {
                self.translations.remove(&oldest);
                self.counts.evicted += 1;
            }
        }
        self.ages.push_back(translation.range.first());
        self.translations
            .insert(translation.range.first(), translation);
    }

    fn remove(&mut self, range: Range<Iova>) {
        // Translations are disjoint, so those that overlap the range are the last ones that start
        // before its end.
        let starting = self.translations.range(..=range.last()).rev();
        let met = starting.take_while(|(_, translation)| translation.range.overlaps(&range));
        let starts: Vec<Iova> = met.map(|(first, _)| *first).collect();
        for start in &starts {
            self.translations.remove(start);
        }
        if !starts.is_empty() {
            self.ages.retain(|age| !starts.contains(age));
        }
    }
}

impl Translation {
    /// Returns the translation of `address`, and all addresses that are translated with it.
    fn at(&self, address: Iova) -> Option<(Translated, Range<Iova>)> {
        let offset = self.range.offset_of(address)?;
        Some((self.to.after(offset), self.range))
    }
}

/// Answers a translation request with the largest page around `address` that one mapping holds.
fn asked(
    address: Iova,
    direction: Direction,
    map: &MemoryMap,
    peers: &PeerTable,
) -> Option<Translation> {
    let Found::Mapped { mapping, .. } = map.find(address) else {
        return None;
    };
    let pages = GRANULES.map(|granule| Range::new(Iova(address.0 & !(granule - 1)), granule));
    let mut pages = pages.into_iter().flatten();
    let range = pages.find(|page| mapping.range.encloses(page))?;
    let to = match &mapping.backing {
        Backing::Ram(span) => Translated::Ram(Span {
            file: span.file.clone(),
            offset: span
                .offset
                .checked_add(mapping.range.offset_of(range.first())?)?,
        }),
        Backing::Device if is_window(peers, range.on_bus()) => {
            Translated::Bus(range.first().on_bus())
        }
        Backing::Device | Backing::RemoteRam => return None,
    };
    let translation = Translation {
        range,
        access: mapping.access,
        to,
    };
    translation.access.allows(direction).then_some(translation)
}

/// Returns `true` if all of these addresses are in one peer's window.
fn is_window(peers: &PeerTable, range: Range<BusAddress>) -> bool {
    match peers.find(range.first()) {
        FoundPeer::Claimed { claimed, .. } => claimed.range.encloses(&range),
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

    fn range(first: u64, size: u64) -> Range<Iova> {
        Range::new(Iova(first), size).unwrap()
    }

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
        map.map(range(2 << 20, (2 << 20) + PAGE), BOTH, ram(4 << 20))
            .unwrap();
        map.map(range(16 << 20, PAGE), MapAccess::READ_ONLY, ram(PAGE))
            .unwrap();
        for device in [32 << 20, 48 << 20] {
            map.map(range(device, 2 * PAGE), BOTH, Backing::Device)
                .unwrap();
        }
        let mut peers = PeerTable::default();
        let window = PeerWindow {
            range: range(32 << 20, 2 * PAGE).on_bus(),
            claim: 1,
            memory: PeerMemory::ByMessage,
        };
        peers.set(PeerId(1), vec![window]);
        (map, peers)
    }

    fn translate(atc: &mut Atc, address: u64, direction: Direction) -> Option<(u64, u64)> {
        let (map, peers) = world();
        let address = Iova(address);
        let (to, range) = atc.translate(address, direction, &map, &peers)?;
        let left = range.clip(address, usize::MAX) as u64;
        match to {
            Translated::Ram(span) => Some((span.offset, left)),
            Translated::Bus(address) => Some((address.0, left)),
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
        let (first, last) = (Iova((4 << 20) + 5), Iova((32 << 20) + 1));
        atc.invalidate(Range::from_bounds(first, last).unwrap());
        assert_eq!(atc.counts(true).invalidated, 2);
        let left: Vec<Iova> = atc.translations.keys().copied().collect();
        assert_eq!(left, [Iova(2 << 20), Iova((32 << 20) + PAGE)]);
        assert_eq!(atc.ages, left);
        atc.invalidate(Range::all());
        assert_eq!((atc.counts(true).invalidated, atc.ages.len()), (4, 0));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut map = MemoryMap::default();
        let pages = ENTRIES as u64 + 2;
        for page in 0..pages {
            map.map(range(page * 2 * PAGE, PAGE), BOTH, ram(PAGE))
                .unwrap();
        }
        let peers = PeerTable::default();
        let mut atc = Atc::default();
        for page in 0..pages {
            let found = atc.translate(Iova(page * 2 * PAGE), Direction::Read, &map, &peers);
            assert!(found.is_some());
        }
        let counts = atc.counts(true);
        assert_eq!((counts.cached, counts.evicted), (ENTRIES as u64, 2));
        assert_eq!(atc.translations.keys().next(), Some(&Iova(4 * PAGE)));
    }

    #[test]
    fn the_whole_address_space_can_be_one_mapping() {
        let mut map = MemoryMap::default();
        map.map(range(1 << 63, 1 << 63), BOTH, ram(PAGE)).unwrap();
        let peers = PeerTable::default();
        let found = Atc::default().translate(Iova(u64::MAX), Direction::Read, &map, &peers);
        let (_, range) = found.unwrap();
        assert_eq!(range.clip(Iova(u64::MAX), usize::MAX), 1);
    }
}
