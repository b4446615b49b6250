//! The guest memory map, from IOVAs to memory and devices.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::map_access::MapAccess;
use crate::memory::Span;

/// Limit of a client's mappings (vfio-user, VERSION, `max_dma_maps`).
const MAX_MAPPINGS: usize = 65535;

/// The reason why a mapping was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// It is empty, or ends past the end of the address space.
    #[error("span {iova:#x}+{size:#x} is empty or wraps around")]
    BadSpan {
        /// First IOVA.
        iova: u64,
        /// Length.
        size: u64,
    },
    /// Some of it is mapped already.
    #[error("span {iova:#x}+{size:#x} overlaps a mapping")]
    Overlap {
        /// First IOVA.
        iova: u64,
        /// Length.
        size: u64,
    },
    /// There are too many mappings, or an unmap would leave too many by splitting one.
    #[error("{MAX_MAPPINGS} mappings exist already: unmap whole ones first")]
    Full,
    /// The client has too much of its memory mapped here.
    #[error("the client lends too much memory")]
    TooMuch,
    /// It extends beyond the end of the file that the client lends for it.
    #[error("span {iova:#x}+{size:#x} goes past the end of its file")]
    PastFile {
        /// First IOVA.
        iova: u64,
        /// Length.
        size: u64,
    },
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
    last: u64,
    pub(crate) access: MapAccess,
    pub(crate) backing: Backing,
}

impl Mapping {
    /// Returns the part that starts `skip` bytes later and ends at `last`.
    fn part(&self, skip: u64, last: u64) -> Self {
        let backing = match &self.backing {
            Backing::Ram(span) => Backing::Ram(Span {
                file: span.file.clone(),
                offset: span.offset.saturating_add(skip),
            }),
            other => other.clone(),
        };
        Self {
            last,
            backing,
            ..*self
        }
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A mapping, the offset of the address in it, and the number of its bytes from there (0 stands
    /// for 2^64).
    Mapped {
        mapping: &'a Mapping,
        skip: u64,
        left: u64,
    },
    /// No mapping. The next one starts after this many bytes, if there is one.
    Gap { left: Option<u64> },
}

/// A table of disjoint mappings. Every operation takes O(log n) for each mapping that it overlaps.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    mappings: BTreeMap<u64, Mapping>,
}

impl MemoryMap {
    /// Adds a mapping of `size` bytes at `iova`.
    pub(crate) fn map(
        &mut self,
        iova: u64,
        size: u64,
        access: MapAccess,
        backing: Backing,
    ) -> Result<(), MapError> {
        let last = size
            .checked_sub(1)
            .and_then(|rest| iova.checked_add(rest))
            .ok_or(MapError::BadSpan { iova, size })?;
        if self
            .before_or_at(last)
            .is_some_and(|(_, mapping)| mapping.last >= iova)
        {
            return Err(MapError::Overlap { iova, size });
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            return Err(MapError::Full);
        }
        self.mappings.insert(
            iova,
            Mapping {
                last,
                access,
                backing,
            },
        );
        Ok(())
    }

    /// Fails if [`Self::unmap`] of the span would split a mapping while the table is full.
    pub(crate) fn check_unmap(&self, iova: u64, last: u64) -> Result<(), MapError> {
        let splits = |(start, mapping): (u64, &Mapping)| start < iova && mapping.last > last;
        if self.mappings.len() >= MAX_MAPPINGS && self.before_or_at(last).is_some_and(splits) {
            return Err(MapError::Full);
        }
        Ok(())
    }

    /// Removes the span from `iova` to `last` (inclusive) from every mapping that it overlaps. The
    /// rest of a mapping on either side stays.
    pub(crate) fn unmap(&mut self, iova: u64, last: u64) {
        while let Some((start, mapping)) = self
            .before_or_at(last)
            .filter(|(_, mapping)| mapping.last >= iova)
            .map(|(start, m)| (start, m.clone()))
        {
            self.mappings.remove(&start);
            if let Some(after) = last.checked_add(1).filter(|after| *after <= mapping.last) {
                self.mappings
                    .insert(after, mapping.part(after - start, mapping.last));
            }
            if let Some(before) = iova.checked_sub(1).filter(|before| *before >= start) {
                self.mappings.insert(start, mapping.part(0, before));
            }
        }
    }

    /// Looks `address` up.
    pub(crate) fn find(&self, address: u64) -> Found<'_> {
        match self.before_or_at(address) {
            Some((start, mapping)) if mapping.last >= address => Found::Mapped {
                mapping,
                skip: address - start,
                left: (mapping.last - address).wrapping_add(1),
            },
            _ => Found::Gap {
                left: self
                    .mappings
                    .range(address..)
                    .next()
                    .map(|(start, _)| start - address),
            },
        }
    }

    fn before_or_at(&self, address: u64) -> Option<(u64, &Mapping)> {
        self.mappings
            .range(..=address)
            .next_back()
            .map(|(start, mapping)| (*start, mapping))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(table: &mut MemoryMap, iova: u64, size: u64) -> Result<(), MapError> {
        table.map(iova, size, MapAccess::READ_WRITE, Backing::Device)
    }

    fn mapped(table: &MemoryMap, address: u64) -> bool {
        matches!(table.find(address), Found::Mapped { .. })
    }

    #[test]
    fn a_mapping_may_end_at_the_end_of_the_address_space() {
        let mut table = MemoryMap::default();
        map(&mut table, 1 << 63, 1 << 63).unwrap();
        assert!(mapped(&table, u64::MAX));
        assert!(!mapped(&table, (1 << 63) - 1));
        table.unmap(1 << 63, u64::MAX);
        assert!(table.mappings.is_empty());
    }

    #[test]
    fn empty_wrapping_and_overlapping_spans_are_refused() {
        let mut table = MemoryMap::default();
        map(&mut table, 0x1000, 0x1000).unwrap();
        assert!(matches!(
            map(&mut table, 0x5000, 0),
            Err(MapError::BadSpan { .. })
        ));
        assert!(matches!(
            map(&mut table, u64::MAX, 2),
            Err(MapError::BadSpan { .. })
        ));
        for (iova, size) in [
            (0x1000, 0x1000),
            (0x1fff, 1),
            (0, 0x1001),
            (0, u64::MAX),
            (0x1800, 0x10),
        ] {
            assert!(
                matches!(map(&mut table, iova, size), Err(MapError::Overlap { .. })),
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
            table.check_unmap(iova, last).unwrap();
            table.unmap(iova, last);
        }
        assert_eq!(table.mappings.len(), MAX_MAPPINGS);
        let next = MAX_MAPPINGS as u64 * 0x2000;
        assert_eq!(table.check_unmap(next, next), Err(MapError::Full));
        assert_eq!(map(&mut table, 0x2000, 0x1000), Err(MapError::Full));
        // A pure removal is possible.
        table.check_unmap(0, 0xfff).unwrap();
        table.check_unmap(next, u64::MAX).unwrap();
        table.check_unmap(0, u64::MAX).unwrap();
    }

    #[test]
    fn an_unmap_of_what_was_never_mapped_does_nothing() {
        let mut table = MemoryMap::default();
        table.unmap(1 << 63, u64::MAX);
        map(&mut table, 0x1000, 0x1000).unwrap();
        table.unmap(0, 0xfff);
        table.unmap(0x2000, u64::MAX);
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
            .map(0x10000, 0x3000, MapAccess::READ_WRITE, Backing::Ram(span))
            .unwrap();
        table.unmap(0x11000, 0x11fff);
        let offset = |address| match table.find(address) {
            Found::Mapped {
                mapping:
                    Mapping {
                        backing: Backing::Ram(span),
                        ..
                    },
                skip,
                left,
            } => Some((span.offset + skip, left)),
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
                    table.unmap(start, start + len - 1);
                    model[range].fill(false);
                }
                for (address, set) in model.iter().enumerate() {
                    prop_assert_eq!(mapped(&table, address as u64), *set);
                }
            }
        }
    }
}
