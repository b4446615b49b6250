//! Memory of this process alone.

use std::io;
use std::ops::Deref;

use vm_memory::MmapRegion;

use crate::hints;
use crate::mapped_memory::MappedMemory;
use crate::memory_error::MemoryError;

/// Zeroed memory that no other process sees, sparse until written.
///
/// It is in huge pages where the host grants them: a copy of 128 KiB then takes a single page walk
/// in place of 32. For memory files the host grants them only if its administrator says so (Linux,
/// admin-guide/mm/transhuge.rst).
#[derive(Debug)]
pub struct PrivateMemory(MappedMemory);

impl PrivateMemory {
    /// Makes a memory of `size` bytes.
    pub fn create(size: u64) -> Result<Self, MemoryError> {
        let os = |source| MemoryError::Os {
            action: "map it",
            size,
            source,
        };
        let length = usize::try_from(size).map_err(|_| os(io::ErrorKind::FileTooLarge.into()))?;
        let region = MmapRegion::new(length).map_err(|error| os(io::Error::other(error)))?;
        let memory = Self(MappedMemory::new(region, size));
        // A host without huge pages uses small ones.
        let _ = hints::huge_pages(memory.pointer(0, length)?, length);
        Ok(memory)
    }

    /// Zeroes `len` bytes at `offset`, and returns whole pages to the host.
    #[expect(unsafe_code)]
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        self.zero_by(offset, len, |first, bytes| {
            let bytes = usize::try_from(bytes).unwrap_or(0);
            let start = self.pointer(first, bytes);
            let start = start.map_err(|_| rustix::io::Errno::INVAL)?;
            // SAFETY: `pointer` has checked that the bytes lie in the region, which is private and
            // mapped by `vm-memory`.
            unsafe { hints::discard(start, bytes) }
        })
    }
}

impl Deref for PrivateMemory {
    type Target = MappedMemory;

    fn deref(&self) -> &MappedMemory {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_range_of_private_memory_reads_as_zeros() {
        const BYTES: usize = 5 << 20;
        let memory = PrivateMemory::create(BYTES as u64).unwrap();
        for (offset, len) in [(1, 4094), (4096, 4096), (100, 3 << 20), (0, BYTES)] {
            memory.write(0, &[0x5a; BYTES]).unwrap();
            memory.zero(offset as u64, len as u64).unwrap();
            let mut found = vec![0xff; BYTES];
            memory.read(0, &mut found).unwrap();
            let mut expected = vec![0x5a; BYTES];
            expected[offset..offset + len].fill(0);
            assert!(found == expected, "{offset}+{len}");
        }
        assert!(memory.zero(BYTES as u64, 1).is_err());
        assert!(PrivateMemory::create(u64::MAX).is_err());
    }
}
