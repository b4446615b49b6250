//! Locks of a namespace's blocks: a command that writes blocks has exclusive access to them, so
//! that a block is never a mix of two writes (NVM Command Set 1.0, 2.1.4; AWUN and NAWUN are at
//! least one block). Neither the page cache nor a copy in memory guarantees that.
//!
//! No thread waits for a lock, since its owner may be a transfer of the same thread. A command
//! whose blocks are locked is deferred until some are unlocked.

use std::sync::atomic::{AtomicU32, Ordering};

use super::backend::Extent;

/// Bytes that share a lock.
const GRANULE: u64 = 4096;
/// Number of locks. Granules that are a multiple of it apart share one.
const LOCKS: u64 = 4096;
/// A command writes. The bits below it count the commands that read.
const WRITER: u32 = 1 << 30;
/// A command has been deferred for this lock. No other command gets the lock before it has been
/// free.
const AWAITED: u32 = 1 << 31;

/// A command's access to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// The command reads the blocks, as others may.
    Shared,
    /// The command writes the blocks.
    Exclusive,
}

/// Other commands have locked some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// A command was deferred for a lock that became free again during this attempt.
    pub(crate) is_awaited: bool,
}

/// The locks of a namespace.
pub(crate) struct BlockLocks(Vec<AtomicU32>);

impl BlockLocks {
    /// Makes locks that are free.
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Locks the whole extent, or none of it.
    pub(crate) fn lock(&self, extent: Extent, mode: LockMode) -> Result<(), Busy> {
        let locked = self.of(extent).take_while(|lock| try_lock(lock, mode));
        let count = locked.count();
        if count == self.of(extent).count() {
            return Ok(());
        }
        Err(Busy {
            is_awaited: unlock_all(self.of(extent).take(count), mode),
        })
    }

    /// Locks the start of an extent for a writer, up to the first block that another command has
    /// locked; a command is then deferred for that block. Returns `None` if that is the extent's
    /// first block. The locked part ends with a granule, thus with a block, or is the whole extent.
    pub(crate) fn lock_start(&self, extent: Extent) -> Option<Extent> {
        let locked = self
            .of(extent)
            .take_while(|lock| try_lock(lock, LockMode::Exclusive));
        let count = locked.count();
        if count == self.of(extent).count() {
            return Some(extent);
        }
        let end = (extent.offset / GRANULE + count as u64) * GRANULE;
        let len = end.checked_sub(extent.offset).filter(|len| *len > 0)?;
        Some(Extent { len, ..extent })
    }

    /// Unlocks an extent. Returns `true` if a command was deferred for it.
    pub(crate) fn unlock(&self, extent: Extent, mode: LockMode) -> bool {
        unlock_all(self.of(extent), mode)
    }

    /// Returns the locks of an extent, each once.
    fn of(&self, Extent { offset, len }: Extent) -> impl Iterator<Item = &AtomicU32> {
        let first = offset / GRANULE;
        let end = offset.saturating_add(len).div_ceil(GRANULE);
        let indices = (first..end.min(first.saturating_add(LOCKS))).map(|granule| granule % LOCKS);
        indices.filter_map(|index| self.0.get(usize::try_from(index).ok()?))
    }
}

/// Returns the amount that an access adds to a lock's value.
fn share(mode: LockMode) -> u32 {
    match mode {
        LockMode::Shared => 1,
        LockMode::Exclusive => WRITER,
    }
}

fn try_lock(lock: &AtomicU32, mode: LockMode) -> bool {
    let is_free = |held: u32| match mode {
        LockMode::Shared => held < WRITER,
        LockMode::Exclusive => held == 0,
    };
    let change = |held| {
        Some(if is_free(held) {
            held + share(mode)
        } else {
            held | AWAITED
        })
    };
    let before = lock.fetch_update(Ordering::Acquire, Ordering::Relaxed, change);
    before.is_ok_and(is_free)
}

fn unlock_all<'a>(locks: impl Iterator<Item = &'a AtomicU32>, mode: LockMode) -> bool {
    let change = |held: u32| match held.saturating_sub(share(mode)) {
        AWAITED => Some(0),
        left => Some(left),
    };
    let unlock = |lock: &AtomicU32| {
        let before = lock.fetch_update(Ordering::Release, Ordering::Relaxed, change);
        before == Ok(AWAITED + share(mode))
    };
    locks.fold(false, |is_awaited, lock| unlock(lock) | is_awaited)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn extent(offset: u64, len: u64) -> Extent {
        Extent { offset, len }
    }

    #[test]
    fn readers_share_blocks_and_a_writer_has_them_alone() {
        let locks = BlockLocks::new();
        let (page, inside) = (extent(0x1000, 0x1000), extent(0x1200, 0x200));
        let busy = Err(Busy { is_awaited: false });
        assert_eq!(locks.lock(page, LockMode::Shared), Ok(()));
        assert_eq!(locks.lock(inside, LockMode::Shared), Ok(()));
        assert_eq!(locks.lock(inside, LockMode::Exclusive), busy);
        assert_eq!(locks.lock(extent(0x2000, 1), LockMode::Exclusive), Ok(()));
        assert_eq!(
            locks.lock(page, LockMode::Shared),
            busy,
            "the writer is next"
        );
        assert!(!locks.unlock(page, LockMode::Shared));
        assert!(locks.unlock(inside, LockMode::Shared), "the writer may try");
        assert_eq!(locks.lock(inside, LockMode::Exclusive), Ok(()));
        assert_eq!(locks.lock(page, LockMode::Shared), busy);
        assert!(locks.unlock(inside, LockMode::Exclusive));
        assert_eq!(locks.lock(page, LockMode::Exclusive), Ok(()));
    }

    #[test]
    fn failed_attempt_leaves_no_block_locked() {
        let locks = BlockLocks::new();
        assert_eq!(locks.lock(extent(0x3000, 1), LockMode::Exclusive), Ok(()));
        for mode in [LockMode::Shared, LockMode::Exclusive] {
            assert!(locks.lock(extent(0, 0x8000), mode).is_err());
            assert_eq!(locks.lock(extent(0, 0x3000), LockMode::Exclusive), Ok(()));
            assert!(!locks.unlock(extent(0, 0x3000), LockMode::Exclusive));
        }
    }

    #[test]
    fn locked_start_ends_before_a_block_locked_by_another() {
        let locks = BlockLocks::new();
        let reader = extent(0x100_5000, 1);
        assert_eq!(locks.lock(reader, LockMode::Shared), Ok(()));
        let start = locks.lock_start(extent(0x1200, 1 << 30));
        assert_eq!(start, Some(extent(0x1200, 0x3e00)));
        assert_eq!(locks.lock_start(extent(0x5200, 0x2000)), None);
        assert!(
            locks.unlock(reader, LockMode::Shared),
            "a writer is deferred"
        );
        assert!(!locks.unlock(extent(0x1200, 0x3e00), LockMode::Exclusive));
        let whole = extent(0x5000, 1 << 30);
        assert_eq!(locks.lock_start(whole), Some(whole));
        assert!(!locks.unlock(whole, LockMode::Exclusive));
        assert_eq!(locks.lock_start(extent(5, 0)), Some(extent(5, 0)));
    }

    #[test]
    fn extent_of_any_size_takes_each_lock_once() {
        let locks = BlockLocks::new();
        for whole in [extent(0x123_4000, 1 << 40), extent(u64::MAX - 8, 8)] {
            assert_eq!(locks.lock(whole, LockMode::Exclusive), Ok(()));
            assert!(locks.lock(whole, LockMode::Shared).is_err());
            assert!(locks.unlock(whole, LockMode::Exclusive));
        }
        assert_eq!(locks.lock(extent(5, 0), LockMode::Exclusive), Ok(()));
    }
}
