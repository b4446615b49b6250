//! The guest memory map, from IOVAs to memory and devices.

use std::collections::BTreeMap;

use peerbar_pci::{Iova, Range};
use thiserror::Error;

use crate::map_access::MapAccess;
use crate::memory::Span;

/// Limit of a client's mappings (vfio-user, VERSION, `max_dma_maps`).
const MAX_MAPPINGS: usize = 65535;

/// The reason why a mapping was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// Some of it is mapped already.
    #[error("span {}+{:#x} overlaps a mapping", .0.first(), .0.size())]
    Overlap(Range<Iova>),
    /// There are too many mappings, or an unmap would leave too many by splitting one.
    #[error("{MAX_MAPPINGS} mappings exist already: unmap whole ones first")]
    Full,
    /// The client has too much of its memory mapped here.
    #[error("the client lends too much memory")]
    TooMuch,
    /// It extends beyond the end of the file that the client lends for it.
    #[error("span {}+{:#x} goes past the end of its file", .0.first(), .0.size())]
    PastFile(Range<Iova>),
    /// A fault rule makes the mapping fail.
    #[error("a fault is injected")]
    Injected,
}

/// The target of a span of IOVAs.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Guest RAM that is mapped here.
    Ram(Span),
    /// Guest RAM that the client lent in a way that cannot be used safely. It is accessed through
    /// the client.
    RemoteRam,
    /// A BAR of this or another device, or a ROM. It is accessed through the client.
    Device,
}

/// One mapping.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) range: Range<Iova>,
    pub(crate) access: MapAccess,
    pub(crate) backing: Backing,
}

impl Mapping {
    /// Returns the part with these addresses.
    fn part(&self, range: Range<Iova>) -> Self {
        let skip = self.range.offset_of(range.first()).unwrap_or_default();
        let backing = match &self.backing {
            Backing::Ram(span) => Backing::Ram(Span {
                file: span.file.clone(),
                offset: span.offset.saturating_add(skip),
            }),
            other => other.clone(),
        };
        Self {
            range,
            backing,
            ..*self
        }
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A mapping, and the offset of the address in it.
    Mapped { mapping: &'a Mapping, skip: u64 },
    /// No mapping. The next one starts after this many bytes, if there is one.
    Gap { left: Option<u64> },
}

/// A table of disjoint mappings. Every operation takes O(log n) for each mapping that it overlaps.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    mappings: BTreeMap<Iova, Mapping>,
}

impl MemoryMap {
    /// Adds a mapping.
    pub(crate) fn map(
        &mut self,
        range: Range<Iova>,
        access: MapAccess,
        backing: Backing,
    ) -> Result<(), MapError> {
        if self.last_of(range).is_some() {
            return Err(MapError::Overlap(range));
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            return Err(MapError::Full);
        }
        let mapping = Mapping {
            range,
            access,
            backing,
        };
        self.mappings.insert(range.first(), mapping);
        Ok(())
    }

    /// Fails if [`Self::unmap`] of the range would split a mapping while the table is full.
    pub(crate) fn check_unmap(&self, range: Range<Iova>) -> Result<(), MapError> {
        let is_split = |mapping: &Mapping| {
            mapping.range.first() < range.first() && range.last() < mapping.range.last()
        };
        if self.mappings.len() >= MAX_MAPPINGS && self.last_of(range).is_some_and(is_split) {
            return Err(MapError::Full);
        }
        Ok(())
    }

    /// Removes the range from every mapping that it overlaps. The rest of a mapping on either side
    /// stays.
    pub(crate) fn unmap(&mut self, range: Range<Iova>) {
        while let Some(mapping) = self.last_of(range).cloned() {
            self.mappings.remove(&mapping.range.first());
            let before = mapping.range.before(range.first());
            let after = mapping.range.after(range.last());
            for rest in before.into_iter().chain(after) {
                self.mappings.insert(rest.first(), mapping.part(rest));
            }
        }
    }

    /// Looks `address` up.
    pub(crate) fn find(&self, address: Iova) -> Found<'_> {
        let before = self.before_or_at(address);
        let found = before.and_then(|mapping| Some((mapping, mapping.range.offset_of(address)?)));
        if let Some((mapping, skip)) = found {
            return Found::Mapped { mapping, skip };
        }
        let next = self.mappings.range(address..).next();
        Found::Gap {
            left: next.and_then(|(first, _)| first.offset_from(address)),
        }
    }

    /// Returns the last mapping that overlaps this range.
    fn last_of(&self, range: Range<Iova>) -> Option<&Mapping> {
        let mapping = self.before_or_at(range.last())?;
        mapping.range.overlaps(&range).then_some(mapping)
    }

    fn before_or_at(&self, address: Iova) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        Some(mapping)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(table: &mut MemoryMap, iova: u64, size: u64) -> Result<(), MapError> {
        let range = Range::new(Iova(iova), size).unwrap();
        table.map(range, MapAccess::READ_WRITE, Backing::Device)
    }

    fn between(first: u64, last: u64) -> Range<Iova> {
        Range::from_bounds(Iova(first), Iova(last)).unwrap()
    }

    fn mapped(table: &MemoryMap, address: u64) -> bool {
        matches!(table.find(Iova(address)), Found::Mapped { .. })
    }

    #[test]
    fn a_mapping_may_end_at_the_end_of_the_address_space() {
        let mut table = MemoryMap::default();
        map(&mut table, 1 << 63, 1 << 63).unwrap();
        assert!(mapped(&table, u64::MAX));
        assert!(!mapped(&table, (1 << 63) - 1));
        table.unmap(between(1 << 63, u64::MAX));
        assert!(table.mappings.is_empty());
    }

    #[test]
    fn overlapping_spans_are_refused() {
        let mut table = MemoryMap::default();
        map(&mut table, 0x1000, 0x1000).unwrap();
        for (iova, size) in [
            (0x1000, 0x1000),
            (0x1fff, 1),
            (0, 0x1001),
            (0, u64::MAX),
            (0x1800, 0x10),
        ] {
            assert!(
                matches!(map(&mut table, iova, size), Err(MapError::Overlap(_))),
                "{iova:#x}+{size:#x}"
            );
        }
        map(&mut table, 0x2000, 0x1000).unwrap();
        map(&mut table, 0, 0x1000).unwrap();
    }

    #[test]
    fn the_number_of_mappings_is_bounded() {
        let mut table = MemoryMap::default();
        for page in 0..MAX_MAPPINGS as u64 {
            map(&mut table, page * 0x2000, 0x1000).unwrap();
        }
        assert_eq!(map(&mut table, 1 << 60, 0x1000), Err(MapError::Full));
    }

    #[test]
    fn splits_count_as_mappings() {
        let mut table = MemoryMap::default();
        map(&mut table, 0, 1 << 60).unwrap();
        for page in 1..MAX_MAPPINGS as u64 {
            let (iova, last) = (page * 0x2000, page * 0x2000 + 0xfff);
            table.check_unmap(between(iova, last)).unwrap();
            table.unmap(between(iova, last));
        }
        assert_eq!(table.mappings.len(), MAX_MAPPINGS);
        let next = MAX_MAPPINGS as u64 * 0x2000;
        assert_eq!(table.check_unmap(between(next, next)), Err(MapError::Full));
        assert_eq!(map(&mut table, 0x2000, 0x1000), Err(MapError::Full));
        // A pure removal is possible.
        table.check_unmap(between(0, 0xfff)).unwrap();
        table.check_unmap(between(next, u64::MAX)).unwrap();
        table.check_unmap(between(0, u64::MAX)).unwrap();
    }

    #[test]
    fn an_unmap_of_what_was_never_mapped_does_nothing() {
        let mut table = MemoryMap::default();
        table.unmap(between(1 << 63, u64::MAX));
        map(&mut table, 0x1000, 0x1000).unwrap();
        table.unmap(between(0, 0xfff));
        table.unmap(between(0x2000, u64::MAX));
        assert_eq!(table.mappings.len(), 1);
    }

    #[test]
    fn what_is_left_of_a_cut_mapping_keeps_its_memory() {
        let mut pool = crate::memory_pool::MemoryPool::default();
        let file = crate::MemoryFile::create("test", 0x4000).unwrap();
        let span = pool
            .span(
                crate::lent_file::LentFile::new(file.file().try_clone().unwrap().into()),
                0x1000,
                0x3000,
            )
            .unwrap();
        let mut table = MemoryMap::default();
        table
            .map(
                between(0x10000, 0x12fff),
                MapAccess::READ_WRITE,
                Backing::Ram(span),
            )
            .unwrap();
        table.unmap(between(0x11000, 0x11fff));
        let offset = |address| match table.find(Iova(address)) {
            Found::Mapped {
                mapping:
                    Mapping {
                        range,
                        backing: Backing::Ram(span),
                        ..
                    },
                skip,
            } => Some((span.offset + skip, range.clip(Iova(address), usize::MAX))),
            _ => None,
        };
        assert_eq!(offset(0x10800), Some((0x1800, 0x800)));
        assert_eq!(offset(0x11000), None);
        assert_eq!(offset(0x12000), Some((0x3000, 0x1000)));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_addresses(steps in prop::collection::vec((any::<bool>(), 0u64..64, 1u64..16), 1..60)) {
            let mut table = MemoryMap::default();
            let mut model = [false; 80];
            for (is_map, start, len) in steps {
                let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
                if is_map {
                    let free = model[range.clone()].iter().all(|set| !set);
                    prop_assert_eq!(map(&mut table, start, len).is_ok(), free);
                    if free {
                        model[range].fill(true);
                    }
                } else {
                    table.unmap(between(start, start + len - 1));
                    model[range].fill(false);
                }
                for (address, set) in model.iter().enumerate() {
                    prop_assert_eq!(mapped(&table, address as u64), *set);
                }
            }
        }
    }
}
