//! Memory files: guest RAM that the client lends, and the memory of a device's own BARs.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use thiserror::Error;
use vm_memory::{
    AtomicAccess, Bytes, MmapRegion, VolatileMemory, VolatileMemoryError, VolatileSlice,
};

use crate::buffer::Buffer;
use crate::hints;
use crate::lease::PeerLeases;
use crate::lent_file::LentFile;
use crate::lent_memory::LentMapping;
use crate::own_memory;

/// Aligned accesses up to this size are done word by word in ascending order, as a bus does them: the last word of a
/// completion entry holds its phase tag and must become visible last.
const ORDERED_LIMIT: usize = 64;
const QUADWORD: usize = 8;
/// An entry of an EFA has its phase in a word of 4 bytes.
const DOUBLEWORD: usize = 4;

/// Bytes of a cache line, and how many are fetched before they are copied: the processor finds out about what follows.
const LINE: usize = 64;
const AHEAD: usize = 512;

/// Against any change of a file's size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Pages of memory files, and what is written at a time where they cannot be given back.
const PAGE: u64 = 4096;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Why a memory file cannot be used.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// It could not be created, sealed, asked or mapped.
    #[error("memory file of {size:#x} bytes: cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Length of the file.
        size: u64,
        /// Why it failed.
        source: io::Error,
    },
    /// A page fault in such a file may wait for another process, as in FUSE, or for a network.
    #[error("lent file is neither in memory (memfd, tmpfs, hugetlbfs) nor on a block device")]
    NotLocal,
    /// A page fault in such a file may wait for a disk.
    #[error("lent file is not in memory (memfd, tmpfs, hugetlbfs)")]
    NotInMemory,
    /// What a lender shows to be alive by is something else.
    #[error("the lender's sign of life is no pipe: show the reading end of one")]
    NotAPipe,
    /// The lender has too much of its memory mapped here.
    #[error("{mappings} mappings of {mapped:#x} bytes are lent: none of {size:#x} bytes is added")]
    TooMuch {
        /// How many mappings it has.
        mappings: usize,
        /// Bytes of them all.
        mapped: u64,
        /// Bytes of the mapping that was refused.
        size: u64,
    },
    /// A page is enough for what it has.
    #[error("memory file of {size:#x} bytes is longer than a page")]
    TooLong {
        /// Length of the file, as far as it was mapped.
        size: u64,
    },
    /// The lender took pages away: it cut the file short, or punched a hole that cannot be filled.
    #[error("memory file of {size:#x} bytes was taken away by the process that lent it")]
    Lost {
        /// Length of what was mapped.
        size: u64,
    },
    /// A peer has closed the window that the memory was behind.
    #[error("memory file of {size:#x} bytes is behind a window that its owner has closed")]
    Closed {
        /// Length of what was mapped.
        size: u64,
    },
    /// Another adapter names a file that it has not lent, or too long ago.
    #[error("no file {number} is lent")]
    NotLent {
        /// The number that it named.
        number: u32,
    },
    /// The span leaves the file.
    #[error("span {offset:#x}+{len:#x} leaves a memory file of {size:#x} bytes")]
    OutOfRange {
        /// First byte of the span.
        offset: u64,
        /// Length of the span.
        len: u64,
        /// Length of the file.
        size: u64,
    },
}

/// Memory that is mapped in this process as a whole. Each access fails if another process lent the memory and took it away.
#[derive(Debug)]
pub struct MappedMemory {
    region: MmapRegion,
    size: u64,
    lent: Option<LentMapping>,
    lease: Option<Lease>,
}

/// The right to use a peer's window, until its owner ends it ([`crate::Leases`]).
#[derive(Clone, Debug)]
pub struct Lease {
    pub(crate) words: Arc<MemoryFile>,
    pub(crate) offset: u64,
    pub(crate) generation: u32,
}

impl Lease {
    /// A lease of another function, that an adapter passes on with the memory: its word is at `offset` of this file.
    ///
    /// # Errors
    /// [`MemoryError::NotInMemory`], [`MemoryError::OutOfRange`], and those of mapping the file.
    pub fn passed_on(fd: OwnedFd, offset: u64, generation: u32) -> Result<Self, MemoryError> {
        let words = PeerLeases::of_file(LentFile::new(fd).in_memory()?)?;
        words.lease_at(offset, generation)
    }

    /// The file of its word, where the word is, and what it is until the lease ends.
    pub fn word(&self) -> (&File, u64, u32) {
        (self.words.file(), self.offset, self.generation)
    }

    /// Whether it is the same one: another descriptor of the same word, and the same value.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_one = |one: &File, other: &File| {
            let id = |file: &File| fstat(file).map(|status| (status.st_dev, status.st_ino));
            matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
        };
        (self.offset, self.generation) == (other.offset, other.generation)
            && is_one(self.words.file(), other.words.file())
    }

    /// Whether it has ended, as of all accesses before this.
    pub(crate) fn is_over(&self) -> bool {
        fence(Ordering::SeqCst);
        !matches!(self.words.load(self.offset), Ok(now) if now == self.generation)
    }
}

/// A memory file of this process as a whole, or a part of one that another process lends.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    /// The name of one that can be renewed.
    name: Option<Box<str>>,
    /// Where in the file the mapping starts.
    first: u64,
    mapped: MappedMemory,
}

impl Deref for MemoryFile {
    type Target = MappedMemory;

    fn deref(&self) -> &MappedMemory {
        &self.mapped
    }
}

impl MemoryFile {
    /// A new memory file of `size` zeroed bytes, sparse until touched and sealed against any change of size.
    pub fn create(name: &str, size: u64) -> Result<Self, MemoryError> {
        let memory = Self::create_sealed(name, size, SealFlags::empty())?;
        Ok(Self {
            name: Some(name.into()),
            ..memory
        })
    }

    /// As [`MemoryFile::create`], with further seals, which are set once it is mapped. It cannot be renewed.
    pub(crate) fn create_sealed(
        name: &str,
        size: u64,
        seals: SealFlags,
    ) -> Result<Self, MemoryError> {
        let too_large = ("map it", Errno::FBIG);
        let make = || {
            let length = usize::try_from(size).map_err(|_| too_large)?;
            let region = own_memory::reserve(length)?;
            let file = own_memory::create(name, size)?;
            own_memory::map_over(&region, &file)?;
            fcntl_add_seals(&file, seals | SIZE_SEALS).map_err(|error| ("seal it", error))?;
            Ok((region, file))
        };
        let (region, file) = make().map_err(|failure| os_error(size, failure))?;
        Ok(Self {
            file: file.into(),
            name: None,
            first: 0,
            mapped: MappedMemory::new(region, size),
        })
    }

    /// Replaces a memory file of this process ([`MemoryFile::create`]) by a fresh one of zeros. All that use it here go on with that;
    /// other processes that have mapped or opened the former one keep that, and see nothing of the fresh one.
    ///
    /// # Errors
    /// [`MemoryError::Os`]: it is lent, or there is no descriptor or memory left. The former one stays (Linux before 6.12 may leave nothing there if
    /// the kernel has no memory for itself).
    pub fn renew(&self) -> Result<(), MemoryError> {
        let renew = || {
            let name = self.name.as_ref();
            let name = name.ok_or(("replace it", Errno::NOTSUP))?;
            let file = own_memory::create(name, self.size)?;
            fcntl_add_seals(&file, SIZE_SEALS).map_err(|error| ("seal it", error))?;
            own_memory::map_over(&self.mapped.region, &file)?;
            own_memory::replace(&self.file, &file)
        };
        renew().map_err(|failure| os_error(self.size, failure))
    }

    /// Maps the first `size` bytes of a file on a disk, which outlives this process and whose size is not sealed. If somebody
    /// shortens it, accesses fail. A process has one such file.
    pub fn of_own_file(file: File, size: u64) -> Result<Self, MemoryError> {
        Self::of_other(file, 0, size, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `size` bytes of a file of another process, from `first` on ([`LentMapping::new`]).
    pub(crate) fn of_other(
        file: File,
        first: u64,
        size: u64,
        access: ProtFlags,
    ) -> Result<Self, MemoryError> {
        let os = |source| MemoryError::Os {
            action: "map it",
            size,
            source,
        };
        let length = usize::try_from(size).map_err(|_| os(io::ErrorKind::FileTooLarge.into()))?;
        let (lent, region) = LentMapping::new(&file, first, length, access).map_err(os)?;
        let mapped = MappedMemory {
            region,
            size,
            lent: Some(lent),
            lease: None,
        };
        Ok(Self {
            file,
            name: None,
            first,
            mapped,
        })
    }

    /// Whether both are under the same lease, or are one mapping.
    pub(crate) fn is_leased_as(&self, other: &Self) -> bool {
        match (&self.mapped.lease, &other.mapped.lease) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => std::ptr::eq(self, other),
            _ => false,
        }
    }

    /// The same, for as long as this lease lasts.
    pub(crate) fn under(mut self, lease: Lease) -> Self {
        self.mapped.lease = Some(lease);
        self
    }

    /// Where in the file the mapping starts, to which all offsets are relative.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The file itself, to be handed to the client.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes lent memory private to this process: what is written since, also by transfers of the kernel that have begun before, changes
    /// nothing of the file, and every access fails as if it was lost. These bytes, an offset and a length, stay as they are now.
    pub(crate) fn detach(&self, kept: Option<(u64, usize)>) -> io::Result<()> {
        let lent = self.mapped.lent.as_ref();
        let lent = lent.ok_or(io::ErrorKind::Unsupported)?;
        lent.detach(&self.file, self.first)?;
        kept.map_or(Ok(()), |(offset, len)| lent.keep(offset, len))
    }

    /// Makes `len` bytes at `offset` zeros. Whole pages of them are given back to the host: they read as zeros in every
    /// mapping of the file, and take memory again once they are written.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.zero_by(offset, len, |first, bytes| {
            fallocate(&self.file, hole, first, bytes)
        })
    }
}

impl MappedMemory {
    /// What `region` maps, which has `size` bytes.
    pub(crate) fn new(region: MmapRegion, size: u64) -> Self {
        Self {
            region,
            size,
            lent: None,
            lease: None,
        }
    }

    /// The lease under which it is used, if there is one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Whether an access has met pages that were taken away: all accesses fail since.
    pub fn is_lost(&self) -> bool {
        self.lent.as_ref().is_some_and(LentMapping::is_lost)
    }

    /// Fails if the memory was lent and taken away, or its lease is over. To be called after an access, which failed then.
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

    /// Fails if it may not be used any more.
    #[inline]
    fn leased(&self) -> Result<(), MemoryError> {
        match &self.lease {
            Some(lease) if lease.is_over() => Err(MemoryError::Closed { size: self.size }),
            _ => Ok(()),
        }
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies between the bytes at `offset` and `data`, as [`Self::read`] and [`Self::write`] do.
    pub fn access(&self, offset: u64, data: Buffer<'_>) -> Result<(), MemoryError> {
        match data {
            Buffer::Read(data) => self.read(offset, data),
            Buffer::Write(data) => self.write(offset, data),
        }
    }

    /// Copies from the memory at `offset` into `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), MemoryError> {
        let slice = self.slice(offset, data.len())?;
        if data.len() <= ORDERED_LIMIT && is_words::<QUADWORD>(offset, data.len()) {
            for (index, word) in data.chunks_exact_mut(QUADWORD).enumerate() {
                let value: u64 = slice
                    .load(index * QUADWORD, Ordering::Acquire)
                    .map_err(|_| self.out_of_range(offset, QUADWORD))?;
                word.copy_from_slice(&value.to_ne_bytes());
            }
        } else {
            slice.copy_to(data);
        }
        self.intact()
    }

    /// Copies `data` into the memory at `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        if data.len() <= ORDERED_LIMIT {
            return self.write_in_order(offset, data);
        }
        self.slice(offset, data.len())?.copy_from(data);
        self.intact()
    }

    /// Copies `data` into the memory at `offset`. A reader that sees a word of 4 bytes of it, if both are multiples of such words, also sees
    /// all that comes before the word, and all that was written before.
    pub(crate) fn write_in_order(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let slice = self.slice(offset, data.len())?;
        let stored = if is_words::<QUADWORD>(offset, data.len()) {
            store_in_order(&slice, data, u64::from_ne_bytes)
        } else if is_words::<DOUBLEWORD>(offset, data.len()) {
            store_in_order(&slice, data, u32::from_ne_bytes)
        } else {
            slice.copy_from(data);
            Ok(())
        };
        stored.map_err(|_| self.out_of_range(offset, data.len()))?;
        self.intact()
    }

    /// Makes `len` bytes at `offset` zeros: by `give_back`, which takes offset and length, where they are whole pages.
    pub(crate) fn zero_by(
        &self,
        offset: u64,
        len: u64,
        give_back: impl FnOnce(u64, u64) -> rustix::io::Result<()>,
    ) -> Result<(), MemoryError> {
        self.check(offset, len)?;
        let end = offset.saturating_add(len);
        let first = offset.next_multiple_of(PAGE).min(end);
        let last = (end / PAGE * PAGE).max(first);
        if first == last || give_back(first, last - first).is_err() {
            return self.write_zeros(offset, end);
        }
        self.write_zeros(offset, first)?;
        self.write_zeros(last, end)
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> Result<(), MemoryError> {
        while offset < end {
            let len = usize::try_from(end - offset).unwrap_or(ZEROS.len());
            let (zeros, _) = ZEROS.split_at(len.min(ZEROS.len()));
            self.write(offset, zeros)?;
            offset = offset.saturating_add(zeros.len() as u64);
        }
        Ok(())
    }

    /// Copies `len` bytes at `offset` to `to_offset` of another memory.
    pub(crate) fn copy_to(
        &self,
        offset: u64,
        to: &MappedMemory,
        to_offset: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        // What is lost already reads as zeros, which are not brought anywhere.
        self.intact()?;
        let from = self.slice(offset, len)?;
        from.copy_to_volatile_slice(to.slice(to_offset, len)?);
        self.intact()?;
        to.intact()
    }

    /// Whether the `len` bytes at `offset` may be accessed now.
    pub(crate) fn check_access(&self, offset: u64, len: usize) -> Result<(), MemoryError> {
        self.slice(offset, len)?;
        self.intact()
    }

    /// Has the processor fetch the first of the `len` bytes at `offset`, which are going to be copied soon. If they are no
    /// memory, nothing is done.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let len = usize::try_from(len).map_or(AHEAD, |len| len.min(AHEAD));
        if let Ok(slice) = self.slice(offset, len) {
            let start = slice.ptr_guard().as_ptr();
            let lines = (0..len).step_by(LINE);
            lines.for_each(|at| hints::line(start.wrapping_add(at)));
        }
    }

    /// Reads the 4 bytes at `offset`, a multiple of 4, in one access. What is read after it is not older.
    pub fn load(&self, offset: u64) -> Result<u32, MemoryError> {
        self.load_word(offset).map(u32::from_le)
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4, in one access. What was written before it is seen before it.
    pub fn store(&self, offset: u64, value: u32) -> Result<(), MemoryError> {
        self.slice(offset, size_of::<u32>())?
            .store(value.to_le(), 0, Ordering::Release)
            .map_err(|_| self.out_of_range(offset, size_of::<u32>()))?;
        self.intact()
    }

    /// The 8 bytes at `offset`, a multiple of 8, in one access.
    pub(crate) fn load_long(&self, offset: u64) -> Result<u64, MemoryError> {
        self.load_word(offset).map(u64::from_le)
    }

    fn load_word<T: AtomicAccess>(&self, offset: u64) -> Result<T, MemoryError> {
        let word = self
            .slice(offset, size_of::<T>())?
            .load(0, Ordering::Acquire)
            .map_err(|_| self.out_of_range(offset, size_of::<T>()))?;
        self.intact()?;
        Ok(word)
    }

    /// Replaces the 8 bytes at `offset`, a multiple of 8, by `next` of them, in one atomic step; the new value.
    pub(crate) fn update(
        &self,
        offset: u64,
        next: impl Fn(u64) -> u64,
    ) -> Result<u64, MemoryError> {
        let slice = self.slice(offset, size_of::<u64>())?;
        let word: &AtomicU64 = slice
            .get_atomic_ref(0)
            .map_err(|_| self.out_of_range(offset, size_of::<u64>()))?;
        let mut was = word.load(Ordering::Acquire);
        loop {
            let will = next(was);
            match word.compare_exchange_weak(was, will, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.intact().map(|()| will),
                Err(now) => was = now,
            }
        }
    }

    /// Has `access` change the 4 bytes at `offset`, a multiple of 4, by atomic steps.
    pub(crate) fn with_word<T>(
        &self,
        offset: u64,
        access: impl FnOnce(&AtomicU32) -> T,
    ) -> Result<T, MemoryError> {
        let slice = self.slice(offset, size_of::<u32>())?;
        let word: &AtomicU32 = slice
            .get_atomic_ref(0)
            .map_err(|_| self.out_of_range(offset, size_of::<u32>()))?;
        let result = access(word);
        self.intact().map(|()| result)
    }

    /// Whether `len` bytes at `offset` lie in the memory.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size);
        end.map(|_| ()).ok_or(MemoryError::OutOfRange {
            offset,
            len,
            size: self.size,
        })
    }

    /// Where in this process the `len` bytes at `offset` are, for as long as the file is kept. They may change at any moment,
    /// so they are for the kernel, not to be looked at.
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

fn os_error(size: u64, (action, error): own_memory::Failure) -> MemoryError {
    MemoryError::Os {
        action,
        size,
        source: error.into(),
    }
}

/// Stores `data` in words of `N` bytes, each after those before it.
fn store_in_order<T: AtomicAccess, const N: usize>(
    slice: &VolatileSlice<'_>,
    data: &[u8],
    word: fn([u8; N]) -> T,
) -> Result<(), VolatileMemoryError> {
    let (words, _) = data.as_chunks();
    for (index, bytes) in words.iter().enumerate() {
        slice.store(word(*bytes), index * N, Ordering::Release)?;
    }
    Ok(())
}

fn is_words<const N: usize>(offset: u64, len: usize) -> bool {
    len.is_multiple_of(N) && offset.is_multiple_of(N as u64)
}

/// A span of a memory file, from `offset` on; how far it may be used is its owner's to know.
#[derive(Clone, Debug)]
pub struct Span {
    /// The memory.
    pub file: Arc<MemoryFile>,
    /// Where in it the span starts.
    pub offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lands_where_it_was_sent_at_any_size_and_alignment() {
        let memory = MemoryFile::create("test", 8192).unwrap();
        for (offset, len) in [
            (0, 16),
            (8, 64),
            (3, 16),
            (8, 7),
            (4, 28),
            (12, 4),
            (8, 12),
            (100, 4000),
            (8176, 16),
        ] {
            let data: Vec<u8> = (0..len).map(|i: u16| i.to_le_bytes()[0] ^ 0x5a).collect();
            memory.write(offset, &data).unwrap();
            let mut back = vec![0; data.len()];
            memory.read(offset, &mut back).unwrap();
            assert_eq!(back, data, "{offset}+{len}");
        }
    }

    #[test]
    fn zeros_are_where_they_were_asked_for_and_take_no_memory() {
        use std::os::unix::fs::MetadataExt;

        const ALL: usize = 16 << 12;

        let memory = MemoryFile::create("test", 16 * PAGE).unwrap();
        let mapped_elsewhere =
            MemoryFile::of_own_file(memory.file().try_clone().unwrap(), 16 * PAGE).unwrap();
        let pages = || memory.file().metadata().unwrap().blocks() * 512 / PAGE;
        for (offset, len, left) in [
            (0, 16 * PAGE, 0),
            (PAGE, 2 * PAGE, 14),
            (PAGE - 8, 2 * PAGE, 15),
            (5, PAGE - 5, 16),
            (100, 200, 16),
            (2 * PAGE, 0, 16),
        ] {
            memory.write(0, &[0xff; ALL]).unwrap();
            memory.zero(offset, len).unwrap();
            assert_eq!(pages(), left, "{offset:#x}+{len:#x}");
            let mut seen = vec![0; ALL];
            mapped_elsewhere.read(0, &mut seen).unwrap();
            let wanted = |at| {
                if (offset..offset + len).contains(&at) {
                    0
                } else {
                    0xff
                }
            };
            assert!((0..).zip(&seen).all(|(at, byte)| *byte == wanted(at)));
        }
        assert!(memory.zero(16 * PAGE, 1).is_err());
        assert!(memory.zero(PAGE, u64::MAX).is_err());
    }

    #[test]
    fn zeros_are_written_where_no_page_can_be_given_back() {
        const ALL: usize = 20 << 12;
        let memory = MemoryFile::create("test", 20 * PAGE).unwrap();
        memory.write(0, &[0xff; ALL]).unwrap();
        memory.write_zeros(3, 20 * PAGE - 3).unwrap();
        let mut seen = vec![0; ALL];
        memory.read(0, &mut seen).unwrap();
        let last = seen.len() - 3;
        assert_eq!(
            (&seen[..3], &seen[last..]),
            (&[0xff; 3][..], &[0xff; 3][..])
        );
        assert!(seen[3..last].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn renewed_file_is_zero_and_apart_from_the_former() {
        let memory = MemoryFile::create("test", 3 * PAGE).unwrap();
        let other = |memory: &MemoryFile| {
            MemoryFile::of_own_file(memory.file().try_clone().unwrap(), 3 * PAGE).unwrap()
        };
        let former = other(&memory);
        memory.write(PAGE, &[7; 100]).unwrap();
        memory.renew().unwrap();
        let seen = |memory: &MemoryFile| {
            let mut seen = [0xff; 100];
            memory.read(PAGE, &mut seen).unwrap();
            seen
        };
        assert_eq!((seen(&memory), seen(&former)), ([0; 100], [7; 100]));
        memory.write(PAGE, &[9; 100]).unwrap();
        former.write(PAGE, &[1; 100]).unwrap();
        assert_eq!((seen(&memory), seen(&other(&memory))), ([9; 100], [9; 100]));
        memory.zero(0, 3 * PAGE).unwrap();
        assert_eq!((seen(&memory), seen(&former)), ([0; 100], [1; 100]));
        assert!(memory.file().set_len(0).is_err(), "sealed");
        assert!(former.renew().is_err(), "it is another's");
    }

    #[test]
    fn access_while_a_file_is_renewed_meets_one_of_the_two() {
        let memory = MemoryFile::create("test", PAGE).unwrap();
        let renewed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while renewed.load(Ordering::Acquire) < 100 {
                    memory.store(64, 5).unwrap();
                    assert!(matches!(memory.load(64), Ok(0 | 5)));
                }
            });
            for _ in 0..100 {
                memory.renew().unwrap();
                renewed.fetch_add(1, Ordering::Release);
            }
        });
    }

    #[test]
    fn a_word_is_loaded_and_stored_whole_and_little_endian() {
        let memory = MemoryFile::create("test", 4096).unwrap();
        memory.store(4092, 0x1234_5678).unwrap();
        let mut bytes = [0; 4];
        memory.read(4092, &mut bytes).unwrap();
        assert_eq!(bytes, [0x78, 0x56, 0x34, 0x12]);
        assert_eq!(memory.load(4092).unwrap(), 0x1234_5678);
        for offset in [4093, 4096, 2, u64::MAX] {
            assert!(memory.load(offset).is_err(), "{offset:#x}");
            assert!(memory.store(offset, 1).is_err(), "{offset:#x}");
        }
    }

    #[test]
    fn what_is_fetched_ahead_stays_as_it_is_and_may_be_no_memory() {
        let memory = MemoryFile::create("test", 4096).unwrap();
        memory.write(0, &[7; 4096]).unwrap();
        for (offset, len) in [
            (0, 4096),
            (4095, 1),
            (4095, 2),
            (4096, 0),
            (u64::MAX, u64::MAX),
        ] {
            memory.prefetch(offset, len);
        }
        let mut back = [0; 4096];
        memory.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
    }

    #[test]
    fn a_span_that_leaves_the_file_is_refused() {
        let memory = MemoryFile::create("test", 4096).unwrap();
        for (offset, len) in [(4096, 1), (4095, 2), (u64::MAX, 1), (0, 4097)] {
            assert!(
                memory.write(offset, &vec![0; len]).is_err(),
                "{offset:#x}+{len}"
            );
            assert!(
                memory.read(offset, &mut vec![0; len]).is_err(),
                "{offset:#x}+{len}"
            );
            assert!(memory.check(offset, len as u64).is_err());
        }
        assert!(memory.check(1, u64::MAX).is_err());
        assert!(memory.check(4096, 0).is_ok());
    }
}
