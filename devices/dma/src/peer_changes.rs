//! Changes of peers' windows. A function notices, before a request, that it has not learned of one
//! yet.
//!
//! A switch counts the changes of all windows in memory that is read-only for the functions below
//! it, and counts a change before it sends it. Its messages say up to which count the function
//! knows all changes. A request that begins after a window was opened therefore goes to that
//! window, or waits until the function knows of it. Opening a window waits for no function.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;

use crate::lent_file::LentFile;
use crate::memory::MemoryFile;
use crate::memory_error::MemoryError;

/// Size of the count's memory in bytes.
const BYTES: u64 = 4096;

/// The count of changes, as a switch has it.
#[derive(Debug)]
pub struct ChangeCount {
    count: MemoryFile,
}

impl ChangeCount {
    /// Makes a count of 0.
    ///
    /// # Errors
    /// [`MemoryError::Os`] if there is no memory for it.
    pub fn new() -> Result<Self, MemoryError> {
        let count = MemoryFile::create_sealed("changes", BYTES, SealFlags::FUTURE_WRITE)?;
        Ok(Self { count })
    }

    /// Returns the count's memory, for the functions below the switch.
    pub fn file(&self) -> &File {
        self.count.file()
    }

    /// Sets the count.
    ///
    /// # Errors
    /// [`MemoryError`] if the memory is gone.
    pub fn set(&self, count: u64) -> Result<(), MemoryError> {
        self.count.update(0, |_| count.to_le()).map(drop)
    }
}

/// A function's knowledge of the changes that its switch has counted.
#[derive(Debug)]
pub(crate) struct PeerChanges {
    count: MemoryFile,
    /// All changes below this count are known.
    unknown: AtomicU64,
    /// Nothing is missed until all changes below this count are known.
    from: u64,
    /// `true` once the switch says no more.
    is_over: AtomicBool,
    /// Held while `unknown` or `is_over` is changed.
    lock: Mutex<()>,
    changed: Condvar,
    /// The number of waits that have begun.
    #[cfg(test)]
    pub(crate) waits: AtomicU64,
}

impl PeerChanges {
    /// Starts without knowledge of the changes that the switch counts in `fd`. If the function does
    /// without its peers, nothing is missed either, until all changes that have been counted by now
    /// are known.
    pub(crate) fn new(fd: OwnedFd, is_without_peers: bool) -> Result<Self, MemoryError> {
        let file = LentFile::new(fd).in_memory()?;
        let count = MemoryFile::of_other(file, 0, BYTES, ProtFlags::READ)?;
        let unknown = count.load_long(0)?;
        Ok(Self {
            count,
            unknown: AtomicU64::new(unknown),
            from: if is_without_peers {
                unknown.saturating_add(1)
            } else {
                0
            },
            is_over: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            #[cfg(test)]
            waits: AtomicU64::new(0),
        })
    }

    /// Returns the count if it is not known yet.
    #[inline]
    pub(crate) fn missed(&self) -> Option<u64> {
        // A lost count belongs to a switch that is gone, which the function learns in another way.
        let count = self.count.load_long(0).ok()?;
        self.misses(count).then_some(count)
    }

    /// Declares that all changes up to this count are known.
    pub(crate) fn know(&self, count: u64) {
        let unknown = count.saturating_add(1);
        self.change(|| self.unknown.store(unknown, Ordering::Release));
    }

    /// Ends all waits: the switch is gone.
    pub(crate) fn end(&self) {
        self.change(|| self.is_over.store(true, Ordering::Relaxed));
    }

    /// Waits until all changes up to this count are known, or the switch is gone. Returns `false`
    /// if that takes too long.
    pub(crate) fn wait(&self, count: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut lock = self.lock.lock();
        #[cfg(test)]
        self.waits.fetch_add(1, Ordering::Relaxed);
        let missed = |(): &mut ()| self.misses(count);
        self.changed.wait_while_until(&mut lock, missed, deadline);
        !self.misses(count)
    }

    /// Returns `true` if not all changes up to this count are known, although they should be.
    pub(crate) fn misses(&self, count: u64) -> bool {
        let unknown = self.unknown.load(Ordering::Acquire);
        (self.from..=count).contains(&unknown) && !self.is_over.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce()) {
        let lock = self.lock.lock();
        change();
        drop(lock);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(60);

    fn counted(count: u64) -> (ChangeCount, Arc<PeerChanges>) {
        let counts = ChangeCount::new().unwrap();
        counts.set(count).unwrap();
        let fd = counts.file().try_clone().unwrap().into();
        let changes = Arc::new(PeerChanges::new(fd, false).unwrap());
        (counts, changes)
    }

    #[test]
    fn newcomer_waits_until_it_knows_of_all_changes() {
        for count in [0, 1, 1 << 40] {
            let (_counts, changes) = counted(count);
            assert_eq!(changes.missed(), Some(count));
            assert!(!changes.wait(count, SOON), "{count}");
            changes.know(count);
            assert_eq!(changes.missed(), None);
            assert!(changes.wait(count, SOON), "{count}");
        }
    }

    #[test]
    fn later_changes_are_not_waited_for() {
        let (counts, changes) = counted(7);
        changes.know(7);
        counts.set(9).unwrap();
        assert_eq!(changes.missed(), Some(9));
        let waiting = changes.clone();
        let waiter = std::thread::spawn(move || waiting.wait(9, LATE));
        while changes.waits.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        changes.know(8);
        counts.set(20).unwrap();
        changes.know(19);
        assert!(waiter.join().unwrap());
        assert_eq!(changes.missed(), Some(20));
    }

    #[test]
    fn function_without_peers_misses_nothing_until_it_knows_of_all() {
        let (counts, _) = counted(5);
        let fd = counts.file().try_clone().unwrap().into();
        let changes = PeerChanges::new(fd, true).unwrap();
        for known in [2, 4] {
            assert_eq!(changes.missed(), None);
            counts.set(7).unwrap();
            changes.know(known);
        }
        assert_eq!(changes.missed(), None);
        changes.know(5);
        assert_eq!(changes.missed(), Some(7));
    }

    #[test]
    fn no_thread_waits_for_a_switch_that_is_gone() {
        let (_counts, changes) = counted(3);
        let waiting = changes.clone();
        let waiter = std::thread::spawn(move || waiting.wait(3, LATE));
        changes.end();
        assert!(waiter.join().unwrap());
        assert_eq!(changes.missed(), None);
    }

    #[test]
    fn functions_cannot_change_the_count() {
        let (counts, _) = counted(0);
        let file = counts.file().try_clone().unwrap();
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        assert!(MemoryFile::of_other(file, 0, BYTES, writable).is_err());
        assert!(rustix::io::pwrite(counts.file(), &[7; 4], 0).is_err());
    }
}
