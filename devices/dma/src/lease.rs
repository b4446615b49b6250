//! Leases, by which the owner of memory ends its peers' use of a window, regardless of their and
//! the switch's state.
//!
//! The owner has a word for each BAR in memory that is read-only for peers. A window is lent
//! together with the value of its word. The owner changes the word when it closes the window. A
//! requester compares the two before and after each access: it begins no access after the change,
//! and an access that was in progress fails. Its data may still have been written, even later: a
//! requester that is stopped in the middle of a copy continues it when it runs again.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::fstat;
use rustix::mm::ProtFlags;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use crate::lent_file::LentFile;
use crate::lent_memory::LentMapping;
use crate::memory_error::MemoryError;

/// Size of the words' memory in bytes.
pub(crate) const BYTES: u64 = 4096;
pub(crate) const WORD: u64 = 4;

/// The right to use a peer's window, until its owner ends it ([`crate::Leases`]).
#[derive(Clone, Debug)]
pub struct Lease {
    words: Arc<LeaseFile>,
    offset: u64,
    generation: u32,
}

impl Lease {
    /// Returns `true` if both are the same lease: the same value of the same word, by any
    /// descriptor.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_one = |one: &File, other: &File| {
            let id = |file: &File| fstat(file).map(|status| (status.st_dev, status.st_ino));
            matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
        };
        (self.offset, self.generation) == (other.offset, other.generation)
            && is_one(&self.words.file, &other.words.file)
    }

    /// Returns `true` if the lease has ended, as of all earlier accesses.
    pub(crate) fn is_over(&self) -> bool {
        fence(Ordering::SeqCst);
        self.words.load(self.offset) != Some(self.generation)
    }
}

/// The lease words of a peer.
#[derive(Clone, Debug)]
pub struct PeerLeases(Arc<LeaseFile>);

impl PeerLeases {
    pub(crate) fn new(lent: LentFile) -> Result<Self, MemoryError> {
        Ok(Self(Arc::new(LeaseFile::map(lent.local()?)?)))
    }

    /// Returns the lease of a window of this BAR.
    pub fn lease(&self, bar: u8, generation: u32) -> Lease {
        Lease {
            words: Arc::clone(&self.0),
            offset: u64::from(bar) * WORD,
            generation,
        }
    }
}

/// The file of a peer's words, mapped.
#[derive(Debug)]
struct LeaseFile {
    file: File,
    region: MmapRegion,
    mapping: LentMapping,
}

impl LeaseFile {
    fn map(file: File) -> Result<Self, MemoryError> {
        let os = |source| MemoryError::Os {
            action: "map it",
            size: BYTES,
            source,
        };
        let len = usize::try_from(BYTES).map_err(|_| os(io::ErrorKind::FileTooLarge.into()))?;
        let (mapping, region) = LentMapping::new(&file, 0, len, ProtFlags::READ).map_err(os)?;
        Ok(Self {
            file,
            region,
            mapping,
        })
    }

    /// Returns the word at `offset`, a multiple of 4, or `None` if the file has no such word or the
    /// peer has taken the file away.
    fn load(&self, offset: u64) -> Option<u32> {
        let offset = usize::try_from(offset).ok()?;
        let word = self.region.get_slice(offset, size_of::<u32>()).ok()?;
        let word: u32 = word.load(0, Ordering::Acquire).ok()?;
        if self.mapping.is_lost() {
            self.mapping.discard();
            return None;
        }
        Some(u32::from_le(word))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;
    use crate::leases::Leases;

    fn borrowed(leases: &Leases) -> PeerLeases {
        PeerLeases::new(LentFile::new(leases.file().try_clone().unwrap().into())).unwrap()
    }

    #[test]
    fn lease_ends_for_its_own_bar_and_for_good() {
        let leases = Leases::new().unwrap();
        let peer = borrowed(&leases);
        let [first, other] = [0, 5].map(|bar| peer.lease(bar, leases.generation(bar)));
        assert!(!first.is_over() && !other.is_over());
        leases.end(0);
        assert!(first.is_over() && !other.is_over());
        assert!(!peer.lease(0, leases.generation(0)).is_over());
    }

    #[test]
    fn lease_whose_words_are_taken_away_is_over() {
        let words = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&words, BYTES).unwrap();
        let peer = PeerLeases::new(LentFile::new(words.try_clone().unwrap())).unwrap();
        let lease = peer.lease(1, 0);
        assert!(!lease.is_over());
        ftruncate(&words, 0).unwrap();
        assert!(lease.is_over());
    }
}
