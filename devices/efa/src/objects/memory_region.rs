//! Memory regions: memory that queue pairs of a protection domain may use, and the accesses that it
//! permits.

use std::collections::{HashMap, HashSet};

use peerbar_efa_spec::work::LOCAL_KEY_MASK;
use thiserror::Error;

use super::error::{ObjectError, ObjectKind, invalid};
use super::region_keys::KeyGenerator;
use crate::limits;
use crate::work::request::Buffer;

/// The driver chooses the lowest bits of the keys of a region that was allocated for fast
/// registration.
const VARIANT_BITS: u32 = 8;
const VARIANTS: u32 = (1 << VARIANT_BITS) - 1;

/// The accesses that a memory region permits. Its own queue pairs may always read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsAccess {
    /// Queue pairs of its protection domain may write to it.
    pub local_write: bool,
    /// Other queue pairs may write to it.
    pub remote_write: bool,
    /// Other queue pairs may read from it.
    pub remote_read: bool,
}

/// Parameters of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct RegisterRegion<'a> {
    /// Its protection domain.
    pub protection_domain: u16,
    /// The address of its first byte, as work requests give it.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The size of its pages, as a power of two.
    pub page_shift: u8,
    /// The addresses of its pages. The first page contains the region's first byte.
    pub pages: &'a [u64],
    /// The accesses that it permits.
    pub access: VerbsAccess,
}

/// The keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKeys {
    /// For local buffers, 24 bits long.
    pub local: u32,
    /// For remote buffers.
    pub remote: u32,
}

/// The permission that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reading by the local key.
    LocalRead,
    /// Writing by the local key.
    LocalWrite,
    /// Reading by the remote key.
    RemoteRead,
    /// Writing by the remote key.
    RemoteWrite,
}

/// The reason why an access to a memory region is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum AccessError {
    /// The protection domain has no region of this key.
    #[error("no memory region of key {key:#x}")]
    UnknownKey { key: u32 },
    /// The region does not permit the access.
    #[error("memory region of key {key:#x} does not permit {need:?}")]
    NotPermitted { key: u32, need: Need },
    /// The bytes do not lie in the region.
    #[error("{address:#x}+{length:#x} is not in the memory region of key {key:#x}")]
    OutOfRange { key: u32, address: u64, length: u32 },
}

/// Memory at a bus address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusSegment {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// A memory region.
#[derive(Default)]
struct MemoryRegion {
    protection_domain: u16,
    remote_key: u32,
    address: u64,
    length: u64,
    access: VerbsAccess,
    /// Number of pages that it has, or may have.
    pages: usize,
    /// `true` if it was allocated for fast registration.
    is_fast: bool,
    /// `true` if it has memory.
    is_valid: bool,
    /// Ranges of pages that are adjacent on the bus, in the order of their offsets in the region.
    /// They cover all of it.
    ranges: Vec<Range>,
}

struct Range {
    /// Its offset in the region.
    offset: u64,
    /// Its bus address.
    address: u64,
    bytes: u64,
}

impl MemoryRegion {
    /// Appends the memory of `length` bytes at `address`, which lie in the region.
    fn segments(&self, address: u64, length: u64, segments: &mut Vec<BusSegment>) {
        let mut offset = address.saturating_sub(self.address);
        let mut left = length;
        let first = self.ranges.partition_point(|it| it.offset <= offset);
        for range in self.ranges.iter().skip(first.saturating_sub(1)) {
            if left == 0 {
                return;
            }
            let into = offset.saturating_sub(range.offset);
            let bytes = left.min(range.bytes.saturating_sub(into));
            if let Ok(part @ 1..) = usize::try_from(bytes) {
                segments.push(BusSegment {
                    address: range.address.wrapping_add(into),
                    bytes: part,
                });
            }
            offset = offset.saturating_add(bytes);
            left -= bytes;
        }
    }

    /// Returns `true` if it permits the access.
    fn permits(&self, need: Need) -> bool {
        match need {
            Need::LocalRead => true,
            Need::LocalWrite => self.access.local_write,
            Need::RemoteRead => self.access.remote_read,
            Need::RemoteWrite => self.access.remote_write,
        }
    }
}

/// The memory regions of an adapter.
#[derive(Default)]
pub(crate) struct MemoryRegions {
    /// By their local keys.
    regions: HashMap<u32, MemoryRegion>,
    /// Local keys by the remote keys of the same regions.
    remote_keys: HashMap<u32, u32>,
    /// The local keys of the regions that were allocated for fast registration, by the key bits
    /// that do not change, and the fixed bits of their remote keys.
    fast_keys: HashMap<u32, u32>,
    fast_remote_keys: HashSet<u32>,
    /// Number of pages of all regions.
    pub(super) pages: usize,
    keys: KeyGenerator,
}

impl MemoryRegions {
    /// Registers memory. Returns the keys of the new region.
    pub(super) fn register(
        &mut self,
        parameters: RegisterRegion<'_>,
    ) -> Result<RegionKeys, ObjectError> {
        let ranges = ranges(&parameters)?;
        let pages = parameters.pages.len();
        self.check_room(pages)?;
        let region = MemoryRegion {
            protection_domain: parameters.protection_domain,
            address: parameters.address,
            length: parameters.length,
            access: parameters.access,
            pages,
            is_valid: true,
            ranges,
            ..MemoryRegion::default()
        };
        Ok(self.add(0, region))
    }

    /// Adds a region. Returns its keys: no other region has them, or may get them, or has keys that
    /// differ from them only in the lowest bits, up to `variants`.
    fn add(&mut self, variants: u32, region: MemoryRegion) -> RegionKeys {
        let all = |key: u32| (0..=variants).map(move |variant| key | variant);
        let local = self.keys.next(LOCAL_KEY_MASK & !variants, |key| {
            self.fast_keys.contains_key(&(key >> VARIANT_BITS))
                || all(key).any(|key| self.regions.contains_key(&key))
        });
        let remote = self.keys.next(!variants, |key| {
            self.fast_remote_keys.contains(&(key >> VARIANT_BITS))
                || all(key).any(|key| self.remote_keys.contains_key(&key))
        });
        self.pages += region.pages;
        self.remote_keys.insert(remote, local);
        let region = MemoryRegion {
            remote_key: remote,
            ..region
        };
        self.regions.insert(local, region);
        RegionKeys { local, remote }
    }

    /// Allocates a region without memory, of at most that many pages. Returns its keys, whose
    /// lowest 8 bits change with each registration.
    pub(super) fn allocate(
        &mut self,
        protection_domain: u16,
        max_pages: usize,
    ) -> Result<RegionKeys, ObjectError> {
        if !(1..=limits::FAST_PAGES).contains(&max_pages) {
            return Err(invalid("number of pages", max_pages as u64));
        }
        if self.fast_keys.len() >= limits::FAST_REGIONS {
            return Err(ObjectError::Exhausted {
                kind: ObjectKind::MemoryRegion,
                limit: limits::FAST_REGIONS,
            });
        }
        self.check_room(max_pages)?;
        let region = MemoryRegion {
            protection_domain,
            pages: max_pages,
            is_fast: true,
            ..MemoryRegion::default()
        };
        let keys = self.add(VARIANTS, region);
        self.fast_keys
            .insert(keys.local >> VARIANT_BITS, keys.local);
        self.fast_remote_keys.insert(keys.remote >> VARIANT_BITS);
        Ok(keys)
    }

    /// Returns the number of pages that may be added to the region of this key, which must have
    /// been allocated in that protection domain and have no memory.
    pub(crate) fn free_pages(
        &self,
        protection_domain: u16,
        local_key: u32,
    ) -> Result<usize, ObjectError> {
        let current = self.fast_keys.get(&(local_key >> VARIANT_BITS));
        let region = current.and_then(|current| self.regions.get(current));
        let region = region
            .filter(|region| region.protection_domain == protection_domain)
            .ok_or(ObjectError::unknown(ObjectKind::MemoryRegion, local_key))?;
        if region.is_valid {
            return Err(ObjectError::in_use(ObjectKind::MemoryRegion, local_key));
        }
        Ok(region.pages)
    }

    /// Adds memory to a region that [`Self::free_pages`] accepts. The region has this local key
    /// from now on.
    pub(crate) fn add_memory(
        &mut self,
        local_key: u32,
        parameters: RegisterRegion<'_>,
    ) -> Result<(), ObjectError> {
        let max_pages = self.free_pages(parameters.protection_domain, local_key)?;
        if parameters.pages.len() > max_pages {
            return Err(invalid("number of pages", parameters.pages.len() as u64));
        }
        let ranges = ranges(&parameters)?;
        let family = local_key >> VARIANT_BITS;
        let current = self.fast_keys.insert(family, local_key);
        let region = current.and_then(|current| self.regions.remove(&current));
        let mut region = region.ok_or(ObjectError::unknown(ObjectKind::MemoryRegion, local_key))?;
        self.remote_keys.remove(&region.remote_key);
        region.remote_key = region.remote_key & !VARIANTS | local_key & VARIANTS;
        region.address = parameters.address;
        region.length = parameters.length;
        region.access = parameters.access;
        region.ranges = ranges;
        region.is_valid = true;
        self.remote_keys.insert(region.remote_key, local_key);
        self.regions.insert(local_key, region);
        Ok(())
    }

    /// Removes the memory of a region that a fast registration has added. Nothing touches it any
    /// more once this returns.
    pub(crate) fn remove_memory(
        &mut self,
        protection_domain: u16,
        local_key: u32,
    ) -> Result<(), ObjectError> {
        let region = self.regions.get_mut(&local_key).filter(|region| {
            region.protection_domain == protection_domain && region.is_fast && region.is_valid
        });
        let region = region.ok_or(ObjectError::unknown(ObjectKind::MemoryRegion, local_key))?;
        region.is_valid = false;
        region.ranges = Vec::new();
        Ok(())
    }

    /// Removes the memory region of this local key, and returns its protection domain. An allocated
    /// region is accepted by any of its keys, since its driver may have changed the key already.
    pub(super) fn remove(&mut self, local_key: u32) -> Result<u16, ObjectError> {
        let family = local_key >> VARIANT_BITS;
        let local_key = self.fast_keys.remove(&family).unwrap_or(local_key);
        let region = self.regions.remove(&local_key);
        let region = region.ok_or(ObjectError::unknown(ObjectKind::MemoryRegion, local_key))?;
        if region.is_fast {
            let family = region.remote_key >> VARIANT_BITS;
            self.fast_remote_keys.remove(&family);
        }
        self.remote_keys.remove(&region.remote_key);
        self.pages = self.pages.saturating_sub(region.pages);
        Ok(region.protection_domain)
    }

    /// Returns the number of memory regions.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// Appends the memory of a buffer to `segments`, if the protection domain has a region of this
    /// key that permits the access to all of it. An empty buffer needs no region.
    pub(crate) fn buffer(
        &self,
        protection_domain: u16,
        buffer: Buffer,
        need: Need,
        segments: &mut Vec<BusSegment>,
    ) -> Result<(), AccessError> {
        if buffer.bytes > 0 {
            let region = self.region_of(protection_domain, buffer, need)?;
            region.segments(buffer.address, buffer.bytes.into(), segments);
        }
        Ok(())
    }

    /// Fails as [`Self::buffer`] does, at the same cost for every length of the buffer.
    pub(crate) fn check_buffer(
        &self,
        protection_domain: u16,
        buffer: Buffer,
        need: Need,
    ) -> Result<(), AccessError> {
        if buffer.bytes > 0 {
            self.region_of(protection_domain, buffer, need)?;
        }
        Ok(())
    }

    /// Returns the region that permits this use of a buffer.
    fn region_of(
        &self,
        protection_domain: u16,
        buffer: Buffer,
        need: Need,
    ) -> Result<&MemoryRegion, AccessError> {
        let Buffer {
            key,
            address,
            bytes,
        } = buffer;
        let local = match need {
            Need::LocalRead | Need::LocalWrite => Some(key & LOCAL_KEY_MASK),
            Need::RemoteRead | Need::RemoteWrite => self.remote_keys.get(&key).copied(),
        };
        let region = local
            .and_then(|local| self.regions.get(&local))
            .filter(|region| region.protection_domain == protection_domain && region.is_valid)
            .ok_or(AccessError::UnknownKey { key })?;
        if !region.permits(need) {
            return Err(AccessError::NotPermitted { key, need });
        }
        let offset = address.checked_sub(region.address);
        let end = offset.and_then(|offset| offset.checked_add(bytes.into()));
        if end.is_none_or(|end| end > region.length) {
            return Err(AccessError::OutOfRange {
                key,
                address,
                length: bytes,
            });
        }
        Ok(region)
    }

    fn check_room(&self, pages: usize) -> Result<(), ObjectError> {
        let exhausted = |limit| ObjectError::Exhausted {
            kind: ObjectKind::MemoryRegion,
            limit,
        };
        if self.regions.len() >= limits::MEMORY_REGIONS {
            return Err(exhausted(limits::MEMORY_REGIONS));
        }
        if self.pages.saturating_add(pages) > limits::PAGES {
            return Err(exhausted(limits::PAGES));
        }
        Ok(())
    }
}

/// Returns the number of pages of this size in a region, from its address and length, or `None` if
/// they are invalid.
pub(crate) fn page_count(address: u64, length: u64, page_shift: u8) -> Option<usize> {
    if !limits::PAGE_SHIFTS.contains(&page_shift) {
        return None;
    }
    let in_page = address & ((1 << page_shift) - 1);
    let last = in_page.checked_add(length.checked_sub(1)?)?;
    usize::try_from((last >> page_shift) + 1).ok()
}

/// Returns the ranges of a region's pages. There must be as many pages as the region has, each at a
/// multiple of its size.
fn ranges(parameters: &RegisterRegion<'_>) -> Result<Vec<Range>, ObjectError> {
    let RegisterRegion {
        address,
        length,
        page_shift,
        pages,
        ..
    } = *parameters;
    if !limits::PAGE_SHIFTS.contains(&page_shift) {
        return Err(invalid("page size shift", page_shift));
    }
    let page = 1u64 << page_shift;
    let in_page = address & (page - 1);
    let fits = length
        .checked_sub(1)
        .is_some_and(|last| address.checked_add(last).is_some());
    let wanted = page_count(address, length, page_shift).filter(|_| fits);
    let wanted = wanted.ok_or_else(|| invalid("length of a memory region", length))?;
    if pages.len() > limits::PAGES_PER_REGION || pages.len() != wanted {
        return Err(invalid("number of pages", pages.len() as u64));
    }
    let mut ranges: Vec<Range> = Vec::new();
    let mut offset = 0;
    for (index, start) in (0u64..).zip(pages) {
        let is_page = start % page == 0 && start.checked_add(page - 1).is_some();
        if !is_page {
            return Err(invalid("address of a page", *start));
        }
        let skipped = if index == 0 { in_page } else { 0 };
        let (address, bytes) = (start + skipped, page - skipped);
        match ranges.last_mut() {
            Some(before) if before.address.checked_add(before.bytes) == Some(address) => {
                before.bytes += bytes;
            }
            _ => ranges.push(Range {
                offset,
                address,
                bytes,
            }),
        }
        offset += bytes;
    }
    ranges.shrink_to_fit();
    Ok(ranges)
}
