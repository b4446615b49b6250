//! The leases that a function grants its peers (see [`crate::lease`]).

use std::fs::File;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::SealFlags;

use crate::lease::{BYTES, WORD};
use crate::memory::MemoryFile;
use crate::memory_error::MemoryError;

/// The leases that a function grants its peers.
#[derive(Debug)]
pub struct Leases {
    words: MemoryFile,
}

impl Leases {
    /// Makes the leases of all BARs. None of them has ended.
    ///
    /// # Errors
    /// [`MemoryError::Os`] if there is no memory for them.
    pub fn new() -> Result<Self, MemoryError> {
        let words = MemoryFile::create_sealed("leases", BYTES, SealFlags::FUTURE_WRITE)?;
        Ok(Self { words })
    }

    /// Returns the words' file, for peers.
    pub fn file(&self) -> &File {
        self.words.file()
    }

    /// Returns the value of a BAR's word while the present lease of its window lasts.
    pub fn generation(&self, bar: u8) -> u32 {
        self.words.load(u64::from(bar) * WORD).unwrap_or_default()
    }

    /// Ends the lease of the BAR's window. No access begins under it afterwards.
    pub fn end(&self, bar: u8) {
        let next = self.generation(bar).wrapping_add(1);
        if let Err(error) = self.words.store(u64::from(bar) * WORD, next) {
            log::error!("the lease of BAR{bar} does not end: {error}");
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;
    use rustix::mm::ProtFlags;

    use super::*;

    #[test]
    fn peers_cannot_change_the_words() {
        let leases = Leases::new().unwrap();
        let file = leases.file().try_clone().unwrap();
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        assert!(MemoryFile::of_other(file, 0, BYTES, writable).is_err());
        assert!(rustix::io::pwrite(leases.file(), &[7; 4], 0).is_err());
        assert!(ftruncate(leases.file(), 0).is_err());
    }
}
