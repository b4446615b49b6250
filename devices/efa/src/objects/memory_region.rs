//! Memory regions: the memory that queue pairs of a protection domain may use, and what for.

use peerbar_efa_spec::work::LOCAL_KEY_MASK;
use thiserror::Error;

use super::error::{ObjectError, ObjectKind, invalid};
use super::{Objects, add_user, limits, remove_user};

/// What a memory region permits. Reading by its own queue pairs is always permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Queue pairs of its protection domain write to it.
    pub local_write: bool,
    /// Other queue pairs write to it.
    pub remote_write: bool,
    /// Other queue pairs read from it.
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
    /// The addresses of its pages. The first one has the region's first byte.
    pub pages: &'a [u64],
    /// What it permits.
    pub access: Access,
}

/// The keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKeys {
    /// For local buffers, in 24 bits.
    pub local: u32,
    /// For remote buffers.
    pub remote: u32,
}

/// What an access needs of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To read it by its local key.
    LocalRead,
    /// To write it by its local key.
    LocalWrite,
    /// To read it by its remote key.
    RemoteRead,
    /// To write it by its remote key.
    RemoteWrite,
}

/// Why an access to a memory region is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum AccessError {
    /// The protection domain has no region of this key.
    #[error("no memory region of key {key:#x}")]
    UnknownKey { key: u32 },
    /// The region does not permit it.
    #[error("memory region of key {key:#x} does not permit {need:?}")]
    NotPermitted { key: u32, need: Need },
    /// The bytes do not lie in the region.
    #[error("{address:#x}+{length:#x} is not in the memory region of key {key:#x}")]
    OutOfRange { key: u32, address: u64, length: u64 },
}

/// Memory at an address of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// A memory region.
pub(super) struct MemoryRegion {
    protection_domain: u16,
    remote_key: u32,
    address: u64,
    length: u64,
    access: Access,
    /// How many pages it has.
    pages: usize,
    /// Pages that follow each other on the bus, in the order of their offsets in the region. They cover all of it.
    ranges: Vec<Range>,
}

struct Range {
    /// Where in the region it starts.
    offset: u64,
    /// Where on the bus it starts.
    address: u64,
    bytes: u64,
}

impl MemoryRegion {
    /// Appends the memory of `length` bytes at `address`, which lie in the region.
    fn places(&self, address: u64, length: u64, places: &mut Vec<Place>) {
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
                places.push(Place {
                    address: range.address.wrapping_add(into),
                    bytes: part,
                });
            }
            offset = offset.saturating_add(bytes);
            left -= bytes;
        }
    }

    /// Whether it permits what is needed.
    fn permits(&self, need: Need) -> bool {
        match need {
            Need::LocalRead => true,
            Need::LocalWrite => self.access.local_write,
            Need::RemoteRead => self.access.remote_read,
            Need::RemoteWrite => self.access.remote_write,
        }
    }
}

impl Objects {
    /// Registers memory. The keys of the new region.
    pub fn register_region(
        &mut self,
        parameters: RegisterRegion<'_>,
    ) -> Result<RegionKeys, ObjectError> {
        let RegisterRegion {
            protection_domain,
            address,
            length,
            pages,
            access,
            ..
        } = parameters;
        self.protection_domains.get(protection_domain)?;
        let ranges = ranges(&parameters)?;
        self.check_room(pages.len())?;
        let local = self
            .keys
            .next(LOCAL_KEY_MASK, |key| self.regions.contains_key(&key));
        let remote = self
            .keys
            .next(u32::MAX, |key| self.remote_keys.contains_key(&key));
        add_user(&mut self.protection_domains, protection_domain)?;
        self.pages += pages.len();
        self.remote_keys.insert(remote, local);
        let region = MemoryRegion {
            protection_domain,
            remote_key: remote,
            address,
            length,
            access,
            pages: pages.len(),
            ranges,
        };
        self.regions.insert(local, region);
        Ok(RegionKeys { local, remote })
    }

    /// Removes the memory region of this local key. Nothing touches its memory any more once this returns.
    pub fn deregister_region(&mut self, local_key: u32) -> Result<(), ObjectError> {
        let region = self.regions.remove(&local_key);
        let region = region.ok_or(ObjectError::Unknown {
            kind: ObjectKind::MemoryRegion,
            number: local_key,
        })?;
        self.loans.end_those_of_region(local_key);
        self.remote_keys.remove(&region.remote_key);
        self.pages = self.pages.saturating_sub(region.pages);
        remove_user(&mut self.protection_domains, region.protection_domain);
        Ok(())
    }

    /// Appends the memory of a buffer to `places`, if the protection domain has a region of this key that permits the access
    /// to all of it. An empty buffer needs no region.
    pub(crate) fn buffer(
        &self,
        protection_domain: u16,
        key: (u32, Need),
        (address, length): (u64, u64),
        places: &mut Vec<Place>,
    ) -> Result<(), AccessError> {
        if length > 0 {
            let region = self.region_of(protection_domain, key, (address, length))?;
            region.places(address, length, places);
        }
        Ok(())
    }

    /// Fails as [`Self::buffer`] does, whatever the buffer's length at the same cost.
    pub(crate) fn check_buffer(
        &self,
        protection_domain: u16,
        key: (u32, Need),
        range: (u64, u64),
    ) -> Result<(), AccessError> {
        if range.1 > 0 {
            self.region_of(protection_domain, key, range)?;
        }
        Ok(())
    }

    /// The region of this key that permits the access to this range.
    fn region_of(
        &self,
        protection_domain: u16,
        (key, need): (u32, Need),
        (address, length): (u64, u64),
    ) -> Result<&MemoryRegion, AccessError> {
        let local = match need {
            Need::LocalRead | Need::LocalWrite => Some(key & LOCAL_KEY_MASK),
            Need::RemoteRead | Need::RemoteWrite => self.remote_keys.get(&key).copied(),
        };
        let region = local
            .and_then(|local| self.regions.get(&local))
            .filter(|region| region.protection_domain == protection_domain)
            .ok_or(AccessError::UnknownKey { key })?;
        if !region.permits(need) {
            return Err(AccessError::NotPermitted { key, need });
        }
        let offset = address.checked_sub(region.address);
        let end = offset.and_then(|offset| offset.checked_add(length));
        if end.is_none_or(|end| end > region.length) {
            return Err(AccessError::OutOfRange {
                key,
                address,
                length,
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

/// The ranges of a region's pages, which are as many as it has, each at a multiple of its size.
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
    let last = length
        .checked_sub(1)
        .filter(|last| address.checked_add(*last).is_some())
        .and_then(|last| in_page.checked_add(last))
        .ok_or_else(|| invalid("length of a memory region", length))?;
    let count = pages.len() as u64;
    if pages.len() > limits::PAGES_PER_REGION || count != (last >> page_shift) + 1 {
        return Err(invalid("number of pages", count));
    }
    let mut ranges: Vec<Range> = Vec::new();
    let mut offset = 0;
    for (index, start) in (0u64..).zip(pages) {
        let is_page = start.is_multiple_of(page) && start.checked_add(page - 1).is_some();
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
