//! The memory files that a client or the peers lend. Each is mapped once, however many descriptors
//! of it arrive.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rustix::mm::ProtFlags;

use crate::lease::Lease;
use crate::lent_file::LentFile;
use crate::lent_memory::{MOST_MAPPINGS, MOST_MAPPINGS_OF_A_PEER};
use crate::memory::{MemoryFile, Span};
use crate::memory_error::MemoryError;
use crate::peers::PeerId;

/// Mappings start and end at multiples of this many bytes of a file, or at its end. A file of usual
/// guest RAM is mapped as a whole: behind an IOMMU the guest maps it page by page, and unmaps all
/// but a few of the pages.
const PART_BYTES: u64 = 64 << 30;

/// Limit of the size of the client's mappings: an eighth of a process's address space (x86-64,
/// 2^47).
const MOST_BYTES: u64 = 16 << 40;
/// The same for one peer: a quarter of the address space for all ports of a switch together.
const MOST_BYTES_OF_A_PEER: u64 = 512 << 30;

/// A mapped part of a file.
#[derive(Debug)]
struct MappedPart {
    /// `None` if it is under a lease and therefore belongs to one window only.
    id: Option<(u64, u64)>,
    first: u64,
    memory: Weak<MemoryFile>,
}

impl MappedPart {
    /// Returns the span from `offset` to `end` of the file, if it is mapped here and not lost.
    fn span(&self, id: (u64, u64), offset: u64, end: u64) -> Option<Span> {
        let file = self.memory.upgrade().filter(|_| self.id == Some(id))?;
        let offset = offset.checked_sub(self.first)?;
        let is_inside = end - self.first <= file.size();
        (is_inside && !file.is_lost()).then_some(Span { file, offset })
    }
}

/// The memory files of one lender, the client or a peer, that are mapped here.
///
/// A file is known by its device and inode numbers. It is mapped in parts, as needed. A part is
/// unmapped when the last [`Span`] of it is dropped.
#[derive(Debug)]
pub struct MemoryPool {
    parts: Vec<MappedPart>,
    /// Limits of the number and the total size of its mappings.
    most: (usize, u64),
}

impl Default for MemoryPool {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            most: (MOST_MAPPINGS, MOST_BYTES),
        }
    }
}

impl MemoryPool {
    /// Makes the pool of a peer.
    fn of_peer() -> Self {
        Self {
            most: (MOST_MAPPINGS_OF_A_PEER, MOST_BYTES_OF_A_PEER),
            ..Self::default()
        }
    }

    /// Returns the span of `size` bytes at `offset` of a lent file.
    pub(crate) fn span(
        &mut self,
        lent: LentFile,
        offset: u64,
        size: u64,
    ) -> Result<Span, MemoryError> {
        self.find(lent, None, offset, size)
    }

    /// Returns the span of `size` bytes at `offset` of a peer's file, under this lease.
    pub(crate) fn leased(
        &mut self,
        lent: LentFile,
        lease: Lease,
        offset: u64,
        size: u64,
    ) -> Result<Span, MemoryError> {
        self.find(lent, Some(lease), offset, size)
    }

    /// Returns all memory that is mapped.
    pub(crate) fn mapped(&self) -> Vec<Arc<MemoryFile>> {
        let mapped = self.parts.iter();
        mapped.filter_map(|part| part.memory.upgrade()).collect()
    }

    fn find(
        &mut self,
        lent: LentFile,
        lease: Option<Lease>,
        offset: u64,
        size: u64,
    ) -> Result<Span, MemoryError> {
        let status = lent.status.map_err(|e| MemoryError::Os {
            action: "ask its size",
            size,
            source: e.into(),
        })?;
        let length = status.stx_size;
        let end = offset.checked_add(size).filter(|end| *end <= length);
        let end = end.ok_or(MemoryError::OutOfRange {
            offset,
            len: size,
            size: length,
        })?;
        let id = lease.is_none().then(|| lent.id());
        let mut known = self.parts.iter();
        if let Some(span) = id.and_then(|id| known.find_map(|part| part.span(id, offset, end))) {
            return Ok(span);
        }
        let file = lent.local()?;
        let first = offset / PART_BYTES * PART_BYTES;
        let bytes = end
            .div_ceil(PART_BYTES)
            .saturating_mul(PART_BYTES)
            .min(length)
            - first;
        self.reserve(bytes)?;
        let memory = MemoryFile::of_other(file, first, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let file = Arc::new(match lease {
            Some(lease) => memory.under(lease),
            None => memory,
        });
        self.parts.push(MappedPart {
            id,
            first,
            memory: Arc::downgrade(&file),
        });
        Ok(Span {
            file,
            offset: offset - first,
        })
    }

    /// Forgets parts that are unmapped. Fails if there is no room for a part of `size` bytes.
    fn reserve(&mut self, size: u64) -> Result<(), MemoryError> {
        let mut mapped = 0u64;
        self.parts.retain(|part| {
            let memory = part.memory.upgrade();
            mapped = mapped.saturating_add(memory.as_ref().map_or(0, |memory| memory.size()));
            memory.is_some()
        });
        let mappings = self.parts.len();
        let (most_mappings, most_bytes) = self.most;
        if mappings >= most_mappings || mapped.saturating_add(size) > most_bytes {
            return Err(MemoryError::TooMuch {
                mappings,
                mapped,
                size,
            });
        }
        Ok(())
    }
}

/// The memory that peers lend, with a pool for each: a peer that lends too much does not use up the
/// others' limits.
#[derive(Debug, Default)]
pub(crate) struct PeerPools(BTreeMap<PeerId, MemoryPool>);

impl PeerPools {
    /// Returns the pool of a peer. Forgets pools without mappings.
    pub(crate) fn of(&mut self, peer: PeerId) -> &mut MemoryPool {
        self.0.retain(|_, pool| !pool.mapped().is_empty());
        self.0.entry(peer).or_insert_with(MemoryPool::of_peer)
    }

    /// Returns all memory that is mapped.
    pub(crate) fn mapped(&self) -> Vec<Arc<MemoryFile>> {
        self.0.values().flat_map(MemoryPool::mapped).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn span(
        pool: &mut MemoryPool,
        fd: &OwnedFd,
        offset: u64,
        size: u64,
    ) -> Result<Span, MemoryError> {
        pool.span(LentFile::new(fd.try_clone().unwrap()), offset, size)
    }

    #[test]
    fn span_that_leaves_its_file_is_refused() {
        let mut pool = MemoryPool::default();
        let fd = memfd(4096);
        for (offset, size) in [(1, 4096), (4096, 1), (u64::MAX, 2), (0, u64::MAX)] {
            let refused = span(&mut pool, &fd, offset, size);
            assert!(matches!(refused, Err(MemoryError::OutOfRange { .. })));
        }
    }

    #[test]
    fn one_file_is_mapped_once_and_goes_with_its_last_span() {
        let mut pool = MemoryPool::default();
        let fd = memfd(8192);
        let first = span(&mut pool, &fd, 0, 4096).unwrap();
        let second = span(&mut pool, &fd, 4096, 4096).unwrap();
        assert!(Arc::ptr_eq(&first.file, &second.file));
        assert_eq!((first.offset, second.offset), (0, 4096));
        drop((first, second));
        assert!(
            pool.parts
                .iter()
                .all(|part| part.memory.strong_count() == 0)
        );
    }

    #[test]
    fn sparse_file_is_mapped_as_far_as_it_is_asked_for() {
        let mut pool = MemoryPool::default();
        let fd = memfd(1 << 62);
        for offset in [0, PART_BYTES - 4096, (1 << 62) - 4096] {
            let one = span(&mut pool, &fd, offset, 4096).unwrap();
            assert_eq!(one.file.size(), PART_BYTES, "{offset:#x}");
            one.file.write(one.offset, &[7; 4096]).unwrap();
            let mut found = [0; 4096];
            rustix::io::pread(&fd, &mut found, offset).unwrap();
            assert_eq!(found, [7; 4096], "{offset:#x}");
        }
        let both = span(&mut pool, &fd, PART_BYTES - 4096, 8192).unwrap();
        assert_eq!(
            (both.file.size(), both.offset),
            (2 * PART_BYTES, PART_BYTES - 4096)
        );
    }

    #[test]
    fn bytes_and_mappings_of_a_lender_are_bounded() {
        let mut pool = MemoryPool::default();
        let large = memfd(1 << 62);
        let refused = span(&mut pool, &large, 0, MOST_BYTES + 1);
        assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
        let all = span(&mut pool, &large, 0, MOST_BYTES).unwrap();
        let small = memfd(4096);
        let refused = span(&mut pool, &small, 0, 4096);
        assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
        drop(all);
        let mut spans: Vec<_> = (0..MOST_MAPPINGS)
            .map(|_| span(&mut pool, &memfd(4096), 0, 4096).unwrap())
            .collect();
        let refused = span(&mut pool, &small, 0, 4096);
        assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
        spans.pop();
        span(&mut pool, &small, 0, 4096).unwrap();
    }

    #[test]
    fn peer_that_lends_all_it_may_leaves_the_others_theirs() {
        let mut pools = PeerPools::default();
        let large = memfd(1 << 62);
        let size = MOST_BYTES_OF_A_PEER;
        let held: Vec<_> = (1..=3)
            .map(|peer| span(pools.of(PeerId(peer)), &large, 0, size).unwrap())
            .collect();
        for peer in 1..=3 {
            let refused = span(pools.of(PeerId(peer)), &memfd(4096), 0, 4096);
            assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
        }
        let small: Vec<_> = (0..MOST_MAPPINGS_OF_A_PEER)
            .map(|_| span(pools.of(PeerId(4)), &memfd(4096), 0, 4096).unwrap())
            .collect();
        let refused = span(pools.of(PeerId(4)), &memfd(4096), 0, 4096);
        assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
        assert_eq!(pools.mapped().len(), held.len() + small.len());
        drop((held, small));
        span(pools.of(PeerId(1)), &large, 0, size).unwrap();
        assert_eq!(pools.0.len(), 1, "pools that are empty are forgotten");
    }

    #[test]
    fn file_of_another_host_or_process_is_not_mapped() {
        let mut pool = MemoryPool::default();
        // Like FUSE and NFS, sysfs has no block device.
        let remote = File::open("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
        let refused = span(&mut pool, &remote.into(), 0, 16);
        assert!(matches!(refused, Err(MemoryError::NotLocal)));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(span(&mut pool, &pipe, 0, 4096).is_err());
        let sealed = memfd(4096);
        fcntl_add_seals(&sealed, SealFlags::FUTURE_WRITE).unwrap();
        let refused = span(&mut pool, &sealed, 0, 4096);
        assert!(matches!(refused, Err(MemoryError::Os { .. })));
    }

    #[test]
    fn lost_mapping_is_not_lent_again() {
        let mut pool = MemoryPool::default();
        let fd = memfd(8192);
        let lost = span(&mut pool, &fd, 0, 8192).unwrap();
        ftruncate(&fd, 0).unwrap();
        assert!(lost.file.read(0, &mut [0; 16]).is_err());
        ftruncate(&fd, 8192).unwrap();
        rustix::io::pwrite(&fd, &[7; 16], 0).unwrap();
        let again = span(&mut pool, &fd, 0, 8192).unwrap();
        let mut found = [0; 16];
        again.file.read(again.offset, &mut found).unwrap();
        assert_eq!(found, [7; 16]);
        assert!(lost.file.read(0, &mut [0; 16]).is_err());
    }
}
