//! Memory files: guest RAM that the client lends, and the memory of a device's own BARs.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::lease::Lease;
use crate::lent_file::LentFile;
use crate::lent_memory::LentMapping;
use crate::mapped_memory::MappedMemory;
use crate::memory_error::MemoryError;
use crate::own_memory;

/// The seals against any change of a file's size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A memory file of this process as a whole, or a part of a file that another process lends.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    /// The name of a file that can be renewed.
    name: Option<Box<str>>,
    /// The offset in the file at which the mapping starts.
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
    /// Creates a memory file of `size` zeroed bytes, sparse until touched and sealed against any
    /// change of size.
    pub fn create(name: &str, size: u64) -> Result<Self, MemoryError> {
        let memory = Self::create_sealed(name, size, SealFlags::empty())?;
        Ok(Self {
            name: Some(name.into()),
            ..memory
        })
    }

    /// Like [`MemoryFile::create`], with further seals, which are set once the file is mapped. The
    /// file cannot be renewed.
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

    /// Replaces a memory file of this process ([`MemoryFile::create`]) by a fresh one of zeros. All
    /// users in this process continue with the fresh file. Other processes that have mapped or
    /// opened the former file keep it, and see nothing of the fresh one.
    ///
    /// # Errors
    /// [`MemoryError::Os`]: the file is lent, or there is no descriptor or memory left. The former
    /// file stays (Linux before 6.12 may leave nothing there if the kernel has no memory for
    /// itself).
    pub fn renew(&self) -> Result<(), MemoryError> {
        let renew = || {
            let name = self.name.as_ref();
            let name = name.ok_or(("replace it", Errno::NOTSUP))?;
            let file = own_memory::create(name, self.size())?;
            fcntl_add_seals(&file, SIZE_SEALS).map_err(|error| ("seal it", error))?;
            own_memory::map_over(self.mapped.region(), &file)?;
            own_memory::replace(&self.file, &file)
        };
        renew().map_err(|failure| os_error(self.size(), failure))
    }

    /// Maps the first `size` bytes of a file on a disk, which outlives this process and whose size
    /// is not sealed. If a process shortens it, accesses fail. A process has only one such file.
    pub fn of_own_file(file: File, size: u64) -> Result<Self, MemoryError> {
        Self::of_other(file, 0, size, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a file of `size` bytes in memory that another process shares, for reading and writing.
    /// A process has at most [`MOST_SHARED_FILES`](crate::MOST_SHARED_FILES) of them. If the other
    /// process shortens it, accesses fail.
    ///
    /// # Errors
    /// [`MemoryError::NotInMemory`]; [`MemoryError::OutOfRange`] if the file has another size; [`MemoryError::Os`].
    pub fn shared(fd: OwnedFd, size: u64) -> Result<Self, MemoryError> {
        let lent = LentFile::new(fd);
        let length = lent.status.map_or(0, |status| status.stx_size);
        let file = lent.in_memory()?;
        if length != size {
            let (offset, len, size) = (0, size, length);
            return Err(MemoryError::OutOfRange { offset, len, size });
        }
        Self::of_other(file, 0, size, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `size` bytes of another process's file, from `first` on ([`LentMapping::new`]).
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
        let lent = LentMapping::new(&file, first, length, access).map_err(os)?;
        Ok(Self {
            file,
            name: None,
            first,
            mapped: MappedMemory::of_lent(lent, size),
        })
    }

    /// Returns `true` if both are under the same lease, or are one mapping.
    pub(crate) fn is_leased_as(&self, other: &Self) -> bool {
        match (self.lease(), other.lease()) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => std::ptr::eq(self, other),
            _ => false,
        }
    }

    /// Returns the memory under this lease.
    pub(crate) fn under(mut self, lease: Lease) -> Self {
        self.mapped.set_lease(lease);
        self
    }

    /// Returns the file itself, to be handed to the client.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes lent memory private to this process. Later writes, also by transfers of the kernel
    /// that began earlier, do not change the file, and every access fails as if the memory were
    /// lost. The bytes of `kept`, an offset and a length, stay as they are now.
    pub(crate) fn detach(&self, kept: Option<(u64, usize)>) -> io::Result<()> {
        let lent = self.mapped.lent();
        let lent = lent.ok_or(io::ErrorKind::Unsupported)?;
        lent.detach(&self.file, self.first)?;
        kept.map_or(Ok(()), |(offset, len)| lent.keep(offset, len))
    }

    /// Zeroes `len` bytes at `offset`. Whole pages are returned to the host: they read as zeros in
    /// every mapping of the file, and take memory again once they are written.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.zero_by(offset, len, |first, bytes| {
            fallocate(&self.file, hole, first, bytes)
        })
    }
}

fn os_error(size: u64, (action, error): own_memory::Failure) -> MemoryError {
    MemoryError::Os {
        action,
        size,
        source: error.into(),
    }
}

/// A span of a memory file, from `offset` on. Its user has the length.
#[derive(Clone, Debug)]
pub struct Span {
    /// The memory.
    pub file: Arc<MemoryFile>,
    /// The offset of the span in the memory.
    pub offset: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const PAGE: u64 = 4096;

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
    fn shared_file_is_one_memory_for_both_until_its_owner_shortens_it() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, PAGE).unwrap();
        let duplicate = || fd.try_clone().unwrap();
        for other in [PAGE - 1, PAGE + 1] {
            let refused = MemoryFile::shared(duplicate(), other);
            assert!(matches!(refused, Err(MemoryError::OutOfRange { .. })));
        }
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        let refused = MemoryFile::shared(on_disk.into(), PAGE);
        assert!(matches!(refused, Err(MemoryError::NotInMemory)));
        let [one, other] = [(); 2].map(|()| MemoryFile::shared(duplicate(), PAGE).unwrap());
        one.write(8, &[7; 16]).unwrap();
        let mut found = [0; 16];
        other.read(8, &mut found).unwrap();
        assert_eq!(found, [7; 16]);
        rustix::fs::ftruncate(&fd, 0).unwrap();
        assert!(matches!(
            one.read(8, &mut found),
            Err(MemoryError::Lost { .. })
        ));
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
