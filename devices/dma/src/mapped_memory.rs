//! Mapped memory, and the checks of each access.

mod access;

use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use crate::lease::Lease;
use crate::lent_memory::LentMapping;
use crate::memory_error::MemoryError;

/// Memory that is mapped in this process as a whole. Each access fails if another process lent the
/// memory and has taken it away.
#[derive(Debug)]
pub struct MappedMemory {
    region: MmapRegion,
    size: u64,
    lent: Option<LentMapping>,
    lease: Option<Lease>,
}

impl MappedMemory {
    /// Wraps a mapped region of `size` bytes.
    pub(crate) fn new(region: MmapRegion, size: u64) -> Self {
        Self {
            region,
            size,
            lent: None,
            lease: None,
        }
    }

    /// Wraps memory that another process lends, mapped as a region of `size` bytes.
    pub(crate) fn of_lent((lent, region): (LentMapping, MmapRegion), size: u64) -> Self {
        Self {
            lent: Some(lent),
            ..Self::new(region, size)
        }
    }

    /// Returns the memory's addresses in this process.
    pub(crate) fn region(&self) -> &MmapRegion {
        &self.region
    }

    /// Returns the mapping, if another process lends the memory.
    pub(crate) fn lent(&self) -> Option<&LentMapping> {
        self.lent.as_ref()
    }

    /// Limits the use of the memory to the life of this lease.
    pub(crate) fn set_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Returns the lease under which the memory is used, if any.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns `true` if an access has met pages that were taken away. All later accesses fail.
    pub fn is_lost(&self) -> bool {
        self.lent.as_ref().is_some_and(LentMapping::is_lost)
    }

    /// Fails if the memory was lent and taken away, or its lease has ended. Must be called after an
    /// access, which has failed in that case.
    #[inline]
    pub(crate) fn intact(&self) -> Result<(), MemoryError> {
        match &self.lent {
            Some(lent) if lent.is_lost() => {
                lent.discard();
                Err(MemoryError::Lost { size: self.size })
            }
            _ => self.leased(),
        }
    }

    /// Fails if the lease has ended.
    #[inline]
    fn leased(&self) -> Result<(), MemoryError> {
        match &self.lease {
            Some(lease) if lease.is_over() => Err(MemoryError::Closed { size: self.size }),
            _ => Ok(()),
        }
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Checks that `len` bytes at `offset` lie in the memory.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size);
        end.map(|_| ()).ok_or(MemoryError::OutOfRange {
            offset,
            len,
            size: self.size,
        })
    }

    /// Returns the address in this process of the `len` bytes at `offset`, valid for as long as the
    /// file is kept. The bytes may change at any moment, so the address is for the kernel, not for
    /// reads in this process.
    pub fn pointer(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryError> {
        Ok(self.slice(offset, len)?.ptr_guard_mut().as_ptr())
    }

    pub(crate) fn slice(&self, offset: u64, len: usize) -> Result<VolatileSlice<'_>, MemoryError> {
        self.leased()?;
        usize::try_from(offset)
            .ok()
            .and_then(|start| self.region.get_slice(start, len).ok())
            .ok_or_else(|| self.out_of_range(offset, len))
    }

    fn out_of_range(&self, offset: u64, len: usize) -> MemoryError {
        MemoryError::OutOfRange {
            offset,
            len: len as u64,
            size: self.size,
        }
    }
}
