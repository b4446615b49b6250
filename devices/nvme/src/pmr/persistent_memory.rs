//! Memory that outlives the server: a file that is mapped as a whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use peerbar_dma::{MemoryError, MemoryFile};
use peerbar_host::socket_file::file_lock;
use rustix::fs::{FallocateFlags, FsWord, fallocate, fstatfs};
use rustix::io::Errno;
use strum::FromRepr;
use thiserror::Error;

use super::unsynced::Unsynced;

/// The sizes of a Persistent Memory Region in bytes. Each must be a power of two, like a BAR.
pub const PMR_SIZES: RangeInclusive<u64> = 2 << 20..=64 << 30;

/// Types of file systems (linux/magic.h, fs/smb/client/cifsglob.h) where a page fault waits for
/// another process or host: FUSE, NFS, 9P, SMB, Ceph.
const DISTANT: [FsWord; 6] = [
    0x6573_5546,
    0x6969,
    0x0102_1997,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
];

/// Types of file systems whose files keep all blocks that are reserved for them: ext4, XFS, tmpfs.
const KEEPING: [FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// Bytes in a block of [`MetadataExt::blocks`].
const BLOCK: u64 = 512;

/// Bytes that are overwritten at a time; all sizes are multiples.
const STEP: usize = 1 << 16;

/// Errors of a Persistent Memory Region.
#[derive(Debug, Error)]
pub enum PmrError {
    /// The file does not exist.
    #[error("PMR {}: not found; `truncate -s 64M {}` makes an empty one", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The file cannot be opened for reading and writing, or the host's disk has no room for it.
    #[error("PMR {}: cannot {action} the file", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A page fault in the file may wait for another process or host.
    #[error("PMR {}: the file is in FUSE or on a network; name one on ext4, XFS, btrfs or tmpfs", .0.display())]
    Distant(PathBuf),
    /// Another process has locked the file.
    #[error("PMR {}: in use by another run; stop that one or name another file", .0.display())]
    InUse(PathBuf),
    /// A BAR cannot be as long as the file.
    #[error("PMR {}: {size} bytes: the region is a whole BAR, so the file's size must be a power of two from 2 MiB to 64 GiB", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
    },
    /// The file cannot be mapped.
    #[error("PMR {}: cannot map the file", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: MemoryError,
    },
}

/// The reason why the region has failed, which lasts until the server is started again. PMRSTS.ERR
/// has the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub(crate) enum PmrFailure {
    /// The host could not bring data to its disk, and may have dropped the data.
    Sync = 1,
    /// The file has been shortened, or lost pages otherwise.
    Lost = 2,
}

/// The memory of a Persistent Memory Region, in a file that is locked during the lifetime of this
/// value, even if other processes map it.
///
/// Other processes of the host see each write in the file at once, so the data outlives the server.
/// [`PersistentMemory::sync`] brings it to the host's disk.
pub(crate) struct PersistentMemory {
    memory: Arc<MemoryFile>,
    /// Holds the lock. A lock belongs to the open file description (flock(2)): a process that has a
    /// descriptor of `memory`, or a mapping made of one, can neither keep this lock nor remove it.
    _lock: File,
    /// The file loses blocks only if a process punches holes or shortens it.
    keeps_blocks: bool,
    /// A [`PmrFailure`], or 0.
    failure: AtomicU8,
    /// Locked for a whole sync, so that syncs end in the order in which they begin.
    unsynced: Mutex<Unsynced>,
}

impl PersistentMemory {
    /// Opens and locks the file at `path`, and reserves its space on the host's disk: a store to a
    /// page without disk space would end the process, and QEMU too.
    pub(crate) fn open(path: &Path) -> Result<Self, PmrError> {
        Self::open_within(path, file_lock::LONGEST_AFTER_A_KILL)
    }

    fn open_within(path: &Path, timeout: Duration) -> Result<Self, PmrError> {
        let os = |action, source| PmrError::Os {
            path: path.into(),
            action,
            source,
        };
        let open = || {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => PmrError::Missing(path.into()),
                _ => os("open", source),
            })
        };
        let lock = open()?;
        file_lock::acquire(&lock, timeout).map_err(|error| match error {
            Errno::TIMEDOUT => PmrError::InUse(path.into()),
            error => os("lock", error.into()),
        })?;
        let look = |file: &File| file.metadata().map_err(|error| os("look at", error));
        let metadata = look(&lock)?;
        let size = metadata.len();
        if !size.is_power_of_two() || !PMR_SIZES.contains(&size) {
            return Err(PmrError::Size {
                path: path.into(),
                size,
            });
        }
        let system = fstatfs(&lock).map_err(|error| os("look at", error.into()))?;
        if DISTANT.contains(&system.f_type) {
            return Err(PmrError::Distant(path.into()));
        }
        fallocate(&lock, FallocateFlags::empty(), 0, size)
            .map_err(|error| os("reserve the space of", error.into()))?;
        let shared = open()?;
        let reserved = look(&shared)?;
        if (reserved.dev(), reserved.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(os("lock", Errno::STALE.into()));
        }
        let memory = MemoryFile::of_own_file(shared, size);
        let memory = memory.map_err(|source| PmrError::Memory {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            memory: Arc::new(memory),
            _lock: lock,
            keeps_blocks: KEEPING.contains(&system.f_type) && has_all_blocks(&reserved, size),
            failure: AtomicU8::new(0),
            unsynced: Mutex::default(),
        })
    }

    /// Returns the file, mapped.
    pub(crate) fn file(&self) -> &Arc<MemoryFile> {
        &self.memory
    }

    /// Returns its size in bytes, a power of two.
    pub(crate) fn size(&self) -> u64 {
        self.memory.size()
    }

    /// Returns the reason why the region has failed, if it has.
    pub(crate) fn failure(&self) -> Option<PmrFailure> {
        PmrFailure::from_repr(self.failure.load(Ordering::Acquire))
    }

    /// Brings all earlier writes to the host's disk, and waits until they are there. A failure
    /// shows in [`PersistentMemory::failure`] permanently: the kernel might report success for a
    /// further sync. With `may_lose_power`, a power loss affects later writes.
    pub(crate) fn sync(&self, may_lose_power: bool) {
        let mut unsynced = self.unsynced.lock();
        unsynced.prepare(may_lose_power, &self.memory);
        let file = self.memory.file();
        let synced = file.sync_data().and_then(|()| file.metadata());
        let failure = match &synced {
            Ok(metadata) if self.is_whole(metadata) => return unsynced.synced(),
            Ok(_) => PmrFailure::Lost,
            Err(_) => PmrFailure::Sync,
        };
        let before = self.failure.swap(failure as u8, Ordering::AcqRel);
        if before == 0 {
            log::error!(
                "the PMR is unreliable until this server is started again: {}",
                match synced {
                    Err(error) => format!("its file cannot be brought to the disk: {error}"),
                    Ok(_) => "its file has been shortened, or has lost pages".to_owned(),
                }
            );
        }
    }

    /// Returns `true` if the file still has all of the region, as far as its metadata shows.
    fn is_whole(&self, file: &Metadata) -> bool {
        let has_blocks = !self.keeps_blocks || has_all_blocks(file, self.size());
        file.len() >= self.size() && has_blocks && !self.memory.is_lost()
    }

    /// Zeroes the whole region. Its space on the disk stays reserved.
    pub(crate) fn erase(&self) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match fallocate(self.memory.file(), flags, 0, self.size()) {
            Err(Errno::OPNOTSUPP) => {
                let zeros = [0; STEP];
                let mut steps = (0..self.size()).step_by(STEP);
                steps
                    .try_for_each(|step| self.memory.write(step, &zeros))
                    .map_err(io::Error::other)
            }
            erased => Ok(erased?),
        }
    }

    /// Loses power: writes since the last sync may be lost, as `rng` decides.
    pub(crate) fn lose_power(&self, rng: &mut Rng) -> Result<(), MemoryError> {
        self.unsynced.lock().lose(&self.memory, rng)
    }
}

/// Returns `true` if all of `size` bytes have blocks on the host's disk.
fn has_all_blocks(file: &Metadata, size: u64) -> bool {
    file.blocks().saturating_mul(BLOCK) >= size
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    fn file(size: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pmr");
        File::create(&path).unwrap().set_len(size).unwrap();
        (folder, path)
    }

    #[test]
    fn written_data_is_in_the_file_and_found_again() {
        let (_folder, path) = file(BYTES);
        let memory = PersistentMemory::open(&path).unwrap();
        memory.file().write(0x1_2345, &[7; 99]).unwrap();
        memory.sync(false);
        assert_eq!(memory.failure(), None);
        drop(memory);
        assert_eq!(std::fs::read(&path).unwrap()[0x1_2345..][..99], [7; 99]);
        let memory = PersistentMemory::open(&path).unwrap();
        let mut data = [0; 99];
        memory.file().read(0x1_2345, &mut data).unwrap();
        assert_eq!((data, memory.size()), ([7; 99], BYTES));
    }

    #[test]
    fn file_that_cannot_be_a_bar_is_refused_with_its_name() {
        for size in [0, 4096, BYTES - 1, 3 * BYTES] {
            let (_folder, path) = file(size);
            let error = PersistentMemory::open(&path).err().unwrap().to_string();
            assert!(error.contains(&format!("{size} bytes")), "{error}");
        }
        let (folder, _) = file(BYTES);
        let missing = folder.path().join("none");
        let error = PersistentMemory::open(&missing).err().unwrap().to_string();
        assert!(error.contains("none: not found"), "{error}");
        let error = PersistentMemory::open(folder.path()).err().unwrap();
        assert!(matches!(error, PmrError::Os { action: "open", .. }));
    }

    #[test]
    fn erased_region_is_zero_and_keeps_its_space() {
        let (_folder, path) = file(BYTES);
        let memory = PersistentMemory::open(&path).unwrap();
        memory.file().write(0, &vec![7; 2 << 20]).unwrap();
        memory.erase().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() as u64 == BYTES && bytes.iter().all(|byte| *byte == 0));
        let mut data = [7; 64];
        memory.file().read(BYTES - 64, &mut data).unwrap();
        assert_eq!(data, [0; 64]);
        assert!(path.metadata().unwrap().blocks() * BLOCK >= BYTES);
    }

    #[test]
    fn file_in_use_is_refused() {
        let (_folder, path) = file(BYTES);
        let first = PersistentMemory::open(&path).unwrap();
        let again = PersistentMemory::open_within(&path, Duration::ZERO);
        assert!(matches!(again, Err(PmrError::InUse(_))));
        drop(first);
        assert!(PersistentMemory::open(&path).is_ok());
    }

    #[test]
    fn space_on_the_disk_is_reserved() {
        let (_folder, path) = file(BYTES);
        assert_eq!(path.metadata().unwrap().blocks(), 0);
        let _memory = PersistentMemory::open(&path).unwrap();
        assert!(path.metadata().unwrap().blocks() * BLOCK >= BYTES);
    }

    #[test]
    fn hole_in_the_file_is_a_failure() {
        let (_folder, path) = file(BYTES);
        let memory = PersistentMemory::open(&path).unwrap();
        if !memory.keeps_blocks {
            return;
        }
        let same = File::options().write(true).open(&path).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&same, hole, BYTES / 2, BYTES / 4).unwrap();
        memory.sync(false);
        assert_eq!(memory.failure(), Some(PmrFailure::Lost));
    }

    #[test]
    fn shortened_file_is_a_failure_that_stays() {
        let (_folder, path) = file(BYTES);
        let memory = PersistentMemory::open(&path).unwrap();
        let same = File::options().write(true).open(&path).unwrap();
        same.set_len(BYTES / 2).unwrap();
        assert!(memory.file().write(BYTES - 8, &[1; 8]).is_err());
        memory.sync(false);
        assert_eq!(memory.failure(), Some(PmrFailure::Lost));
        same.set_len(BYTES).unwrap();
        memory.sync(false);
        assert_eq!(memory.failure(), Some(PmrFailure::Lost));
    }
}
