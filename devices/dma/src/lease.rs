//! Leases: how the owner of memory ends its peers' use of a window, whatever they and the switch are doing.
//!
//! The owner has a word for each BAR in memory that peers can read only. A window is lent together with the value of its word. The owner
//! changes the word when it closes the window. A requester compares the two before and after each access: it begins none after the
//! change, and one that was in progress fails. What that one wrote may still be there: a requester that is stopped in the
//! middle of a copy goes on with it later.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;

use crate::lent_file::LentFile;
use crate::memory::{Lease, MemoryFile};
use crate::memory_error::MemoryError;

/// Bytes of the words' memory, and of a word.
const BYTES: u64 = 4096;
const WORD: u64 = 4;

/// The leases that a function gives to its peers.
#[derive(Debug)]
pub struct Leases {
    words: MemoryFile,
}

impl Leases {
    /// Leases of all BARs, none of which has ended.
    ///
    /// # Errors
    /// [`MemoryError::Os`] if there is no memory for them.
    pub fn new() -> Result<Self, MemoryError> {
        let words = MemoryFile::create_sealed("leases", BYTES, SealFlags::FUTURE_WRITE)?;
        Ok(Self { words })
    }

    /// The words, for peers.
    pub fn file(&self) -> &File {
        self.words.file()
    }

    /// The value that the word of a BAR has until the lease of its window ends.
    pub fn generation(&self, bar: u8) -> u32 {
        self.words.load(u64::from(bar) * WORD).unwrap_or_default()
    }

    /// Ends the lease of the BAR's window. No access begins by it any more.
    pub fn end(&self, bar: u8) {
        let next = self.generation(bar).wrapping_add(1);
        if let Err(error) = self.words.store(u64::from(bar) * WORD, next) {
            log::error!("the lease of BAR{bar} does not end: {error}");
        }
        fence(Ordering::SeqCst);
    }
}

/// The words of a peer.
#[derive(Clone, Debug)]
pub struct PeerLeases(Arc<MemoryFile>);

impl PeerLeases {
    pub(crate) fn new(lent: LentFile) -> Result<Self, MemoryError> {
        Self::of_file(lent.local()?)
    }

    pub(crate) fn of_file(file: File) -> Result<Self, MemoryError> {
        Ok(Self(Arc::new(MemoryFile::of_other(
            file,
            0,
            BYTES,
            ProtFlags::READ,
        )?)))
    }

    /// The lease of a window of this BAR.
    pub fn lease(&self, bar: u8, generation: u32) -> Lease {
        Lease {
            words: Arc::clone(&self.0),
            offset: u64::from(bar) * WORD,
            generation,
        }
    }

    /// The lease whose word is at `offset`, a multiple of 4.
    pub(crate) fn lease_at(&self, offset: u64, generation: u32) -> Result<Lease, MemoryError> {
        let is_word = offset.is_multiple_of(WORD) && offset < BYTES;
        let lease = Lease {
            words: Arc::clone(&self.0),
            offset,
            generation,
        };
        is_word.then_some(lease).ok_or(MemoryError::OutOfRange {
            offset,
            len: WORD,
            size: BYTES,
        })
    }
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
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

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
    fn peers_cannot_change_the_words() {
        let leases = Leases::new().unwrap();
        let file = leases.file().try_clone().unwrap();
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        assert!(MemoryFile::of_other(file, 0, BYTES, writable).is_err());
        assert!(rustix::io::pwrite(leases.file(), &[7; 4], 0).is_err());
        assert!(ftruncate(leases.file(), 0).is_err());
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
