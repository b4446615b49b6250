//! Memory of the client and its peers, by bus address.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use vfio_user::DmaMapFlags;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// The memory that the client has mapped with descriptors.
#[derive(Default)]
pub(crate) struct Mappings(BTreeMap<u64, Mapping>);

struct Mapping {
    memory: MmapRegion,
    flags: DmaMapFlags,
}

impl Mappings {
    /// Adds `size` bytes at `address`, which are those of `file` from `offset` on.
    pub(crate) fn add(
        &mut self,
        flags: DmaMapFlags,
        address: u64,
        size: u64,
        file: File,
        offset: u64,
    ) -> io::Result<()> {
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let memory = MmapRegion::from_file(FileOffset::new(file, offset), size);
        let memory = memory.map_err(io::Error::other)?;
        self.0.insert(address, Mapping { memory, flags });
        Ok(())
    }

    /// Removes all mappings that begin in the `size` bytes at `address`, whose end may be 2^64.
    pub(crate) fn remove(&mut self, address: u64, size: u64) {
        let last = address.saturating_add(size.saturating_sub(1));
        self.0
            .retain(|start, _| size == 0 || !(address..=last).contains(start));
    }

    /// Returns the memory at `address` that is mapped for `access`, at most `length` bytes of it.
    pub(crate) fn find(
        &self,
        address: u64,
        length: usize,
        access: DmaMapFlags,
    ) -> Option<VolatileSlice<'_>> {
        let (start, mapping) = self.0.range(..=address).next_back()?;
        let slice = mapping.memory.as_volatile_slice();
        let at = usize::try_from(address.checked_sub(*start)?).ok()?;
        let length = slice.len().checked_sub(at)?.min(length);
        let allowed = mapping.flags.contains(access) && length > 0;
        slice.subslice(at, length).ok().filter(|_| allowed)
    }
}
