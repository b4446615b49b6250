//! Guest memory that a client lends by vhost-user, by guest addresses.

use std::os::fd::OwnedFd;

use vm_memory::{
    GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollection, MemoryRegionAddress, VolatileSlice,
};

use crate::lent_file::LentFile;
use crate::memory::Span;
use crate::memory_error::MemoryError;
use crate::memory_pool::MemoryPool;

/// All guest memory that a client lends.
///
/// Access to memory that the client has taken away succeeds with meaningless data, so each use must
/// end with [`LentRegion::intact`] of every region.
pub type LentGuestMemory = GuestRegionCollection<LentRegion>;

/// A range of guest memory, mapped in this process until it is dropped.
#[derive(Debug)]
pub struct LentRegion {
    span: Span,
    start: GuestAddress,
    size: u64,
}

impl LentRegion {
    /// Maps `size` bytes at `offset` of a file, whose guest address is `start`.
    ///
    /// # Errors
    /// [`MemoryError`]: `pool` has reached this client's limit, or the range is empty or leaves the
    /// address space.
    pub fn map(
        pool: &mut MemoryPool,
        fd: OwnedFd,
        offset: u64,
        size: u64,
        start: GuestAddress,
    ) -> Result<Self, MemoryError> {
        if size == 0 || start.0.checked_add(size).is_none() {
            return Err(MemoryError::OutOfRange {
                offset: start.0,
                len: size,
                size: u64::MAX,
            });
        }
        let span = pool.span(LentFile::new(fd), offset, size)?;
        Ok(Self { span, start, size })
    }

    /// Fails if the client took the memory away. Data that was read from it is then meaningless.
    ///
    /// # Errors
    /// [`MemoryError::Lost`].
    pub fn intact(&self) -> Result<(), MemoryError> {
        self.span.file.intact()
    }
}

impl GuestMemoryRegion for LentRegion {
    type B = ();

    fn len(&self) -> u64 {
        self.size
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) {}

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_>, GuestMemoryError> {
        let len = u64::try_from(count).unwrap_or(u64::MAX);
        let end = offset.0.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.size);
        let at = self.span.offset.checked_add(offset.0);
        let slice = at
            .filter(|_| inside)
            .and_then(|at| self.span.file.slice(at, count).ok());
        slice.ok_or(GuestMemoryError::InvalidBackendAddress)
    }
}

impl GuestMemoryRegionBytes for LentRegion {}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::Bytes;

    use super::*;

    const PAGE: u64 = 4096;

    fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn region(fd: &OwnedFd, offset: u64, size: u64, start: u64) -> Result<LentRegion, MemoryError> {
        let fd = fd.try_clone().unwrap();
        LentRegion::map(
            &mut MemoryPool::default(),
            fd,
            offset,
            size,
            GuestAddress(start),
        )
    }

    #[test]
    fn guest_address_leads_to_its_byte_of_the_file() {
        let fd = memfd(4 * PAGE);
        let memory = LentGuestMemory::from_regions(vec![
            region(&fd, 2 * PAGE, PAGE, 0).unwrap(),
            region(&fd, 0, PAGE, 0x10_0000).unwrap(),
        ])
        .unwrap();
        memory.write_obj(7_u32, GuestAddress(8)).unwrap();
        memory.write_obj(9_u32, GuestAddress(0x10_0ffc)).unwrap();
        for (offset, value) in [(2 * PAGE + 8, 7_u32), (PAGE - 4, 9)] {
            let mut found = [0; 4];
            rustix::io::pread(&fd, &mut found, offset).unwrap();
            assert_eq!(u32::from_le_bytes(found), value, "{offset:#x}");
        }
    }

    #[test]
    fn access_beyond_a_region_fails() {
        let fd = memfd(4 * PAGE);
        let region = region(&fd, PAGE, PAGE, 0).unwrap();
        for (offset, count) in [(0, 4097), (4096, 1), (4095, 2), (u64::MAX, 1)] {
            let slice = region.get_slice(MemoryRegionAddress(offset), count);
            assert!(slice.is_err(), "{offset:#x}+{count}");
        }
        assert_eq!(region.as_volatile_slice().unwrap().len(), 4096);
    }

    #[test]
    fn region_without_memory_is_refused() {
        let fd = memfd(PAGE);
        for (offset, size, start) in [
            (0, 0, 0),
            (0, 2 * PAGE, 0),
            (1, PAGE, 0),
            (0, PAGE, u64::MAX),
        ] {
            let refused = region(&fd, offset, size, start);
            assert!(
                matches!(refused, Err(MemoryError::OutOfRange { .. })),
                "{offset:#x} {size:#x} {start:#x}"
            );
        }
    }

    #[test]
    fn region_taken_away_is_not_intact() {
        let fd = memfd(PAGE);
        let region = region(&fd, 0, PAGE, 0).unwrap();
        let read = || region.read_obj::<u32>(MemoryRegionAddress(8)).unwrap();
        assert_eq!(read(), 0);
        region.intact().unwrap();
        ftruncate(&fd, 0).unwrap();
        assert_eq!(read(), 0);
        assert!(matches!(region.intact(), Err(MemoryError::Lost { .. })));
    }
}
